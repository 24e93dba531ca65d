//! Whom the tests of this crate's inside speak of.

use domain::{BlockSize, DpRank, Epoch, ModelName, Namespace, Target, WorkerId};

pub(crate) fn target(rank: u32) -> Target {
    Target {
        worker: WorkerId::new("w").expect("a plain id"),
        epoch: Epoch::FIRST,
        dp_rank: DpRank::new(rank),
    }
}

pub(crate) fn namespace() -> Namespace {
    Namespace {
        model: ModelName::new("m").expect("a plain name"),
        lora: None,
        salt: None,
        block_size: BlockSize::new(16).expect("not zero"),
    }
}
