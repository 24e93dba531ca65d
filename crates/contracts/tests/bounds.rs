//! What a registration says of sizes is bounded where it is read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use contracts::{Encoding, FleetEntry};
use domain::{
    BlockSize, Capability, EngineKind, Epoch, HeaderSpace, KvEndpoints, RankControl, TargetState,
    Timestamp, Worker,
};

fn worker() -> Worker {
    let size = BlockSize::new(16).unwrap();
    Worker {
        id: "w1".parse().unwrap(),
        epoch: Epoch::FIRST,
        engine: EngineKind::Vllm,
        version: String::new(),
        model: "m".parse().unwrap(),
        start_rank: 0,
        dp_size: 1,
        block_size: size,
        page_size: size,
        kv_blocks: None,
        capability: Capability::uniform(RankControl::Strict, HeaderSpace::Global),
        state: TargetState::Ready,
        url: String::new(),
        kv_endpoints: KvEndpoints::None,
        lease_until: Timestamp::ZERO,
    }
}

#[test]
fn of_blocks_that_no_engine_has_a_worker_is_refused() {
    // 2^32 - 1 and 65,537 as varints; a field that comes twice counts as it came last.
    let sizes: [&[u8]; 2] = [&[0xff, 0xff, 0xff, 0xff, 0x0f], &[0x81, 0x80, 0x04]];
    for (name, number) in [("block_size", 8_u8), ("page_size", 15)] {
        for size in sizes {
            let field = [&[number << 3], size].concat();
            let more = [&[0x0a, field.len() as u8], field.as_slice()].concat();
            let bytes = FleetEntry::Worker(worker()).to_bytes();

            let read = FleetEntry::from_bytes(&[bytes.as_ref(), more.as_slice()].concat());

            assert_eq!(
                read.unwrap_err().to_string(),
                format!("decode worker: field {name} is not 1 to 65536 tokens")
            );
        }
    }
}
