//! A fleet in simulated time: seeded workloads, traces, and a discrete-event simulation of engines that runs
//! the routing code of the services.

mod agentx;
mod random;
mod replay;
mod trace;
mod workload;

pub use agentx::{AgentX, Conversation, Turn, working_set};
pub use random::Random;
pub use replay::{FleetConfig, Progress, Report, replay};
pub use trace::{Trace, TraceError, TraceRequest};
pub use workload::{
    Begins, CATALOGUE, Content, Decode, Named, Session, Source, TRACE_BLOCK_TOKENS,
    Turn as WorkloadTurn, Workload, named,
};
