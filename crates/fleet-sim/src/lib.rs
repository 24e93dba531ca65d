//! A fleet in simulated time: seeded workloads, traces, and a discrete-event simulation of engines that runs
//! the routing code of the services.

mod agentx;
mod random;
mod report;
mod setting;
mod trace;
mod workload;
mod world;

pub use agentx::{AgentX, Conversation, Turn, working_set};
pub use random::Random;
pub use report::{BindingCounts, Progress, Report, TargetReport};
pub use setting::{DrainAt, EventFaults, Fleet, Partition, Restarts, Setting};
pub use trace::{Trace, TraceError, TraceRequest};
pub use workload::{
    Begins, CATALOGUE, Content, Decode, Named, Session, Source, TRACE_BLOCK_TOKENS,
    Turn as WorkloadTurn, Workload, named,
};
pub use world::{RunError, run};
