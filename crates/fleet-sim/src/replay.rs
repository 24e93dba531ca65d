//! A trace through one policy.

use std::sync::Arc;
use std::time::Duration;

use placement::Policy;

use crate::{
    Begins, Content, Fleet, Progress, Report, RunError, Session, Setting, Trace, Workload,
    WorkloadTurn, run,
};

/// Replays `trace` on `fleet` under `policy`. The same arguments give the same report.
pub fn replay(
    trace: &Trace,
    fleet: &Fleet,
    policy: Policy,
    seed: u64,
    progress: impl FnMut(Progress),
) -> Result<Report, RunError> {
    let sessions = trace.requests.iter().map(|it| Session {
        conversation: None,
        parent: None,
        tenant: 0,
        begins: Begins::At(it.at),
        turns: vec![WorkloadTurn {
            content: Arc::new(Content::new(it.blocks.clone())),
            isl: it.isl,
            osl: it.osl,
            kept: it.isl,
            gap: Duration::ZERO,
        }],
    });
    let workload = Workload {
        name: "trace".to_owned(),
        block_size: trace.block_size,
        sessions: sessions.collect(),
    };
    let setting = Setting {
        fleet: *fleet,
        policy,
        seed,
        ..Setting::default()
    };
    run(&workload, &setting, progress)
}
