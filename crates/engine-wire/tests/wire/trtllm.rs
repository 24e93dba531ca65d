//! Buffered events of TensorRT-LLM: each body's meaning, written by hand.

use domain::{DpRank, EngineHash, Tier};
use engine_wire::trtllm::{Item, decode_body};
use engine_wire::{Event, Medium, Moved, NotIndexable, Stored};
use serde_json::{Value, json};

use crate::corpus;

const ROOT: u64 = 742_108_498_656_880;
const CHILD: u64 = 1_421_629_712_422_022_130;
const PARTIAL: u64 = 14_581_166_174_051_819_886;

fn body(name: &str) -> Vec<Item> {
    let file = corpus::json(&format!("trtllm/http_kv_cache_events_{name}.json"));
    decode(&file["body"])
}

fn decode(body: &Value) -> Vec<Item> {
    decode_body(&serde_json::to_vec(body).unwrap()).unwrap()
}

fn int(hash: u64) -> EngineHash {
    EngineHash::Int(hash)
}

fn store(parent: Option<EngineHash>, hashes: &[EngineHash], tokens: &[u32]) -> Stored {
    Stored {
        block_hashes: hashes.to_vec(),
        parent,
        token_ids: tokens.to_vec(),
        opaque_tokens: 0,
        block_size: (tokens.len() / hashes.len()) as u32,
        medium: Medium::Tier(Tier::Gpu),
        group: None,
        spec_kind: None,
        lora: None,
        salt: None,
        session: None,
    }
}

fn created() -> Event {
    Event::Created {
        blocks_per_level: vec![128, 32],
    }
}

#[test]
fn a_body_of_one_rank_means_what_it_says() {
    let items = body("single_rank");

    let ids: Vec<_> = items.iter().map(|item| item.event_id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5].map(Some));
    assert!(
        items
            .iter()
            .all(|item| item.dp_rank.is_none() && item.layer_group.is_none())
    );
    assert!(items.iter().all(|item| item.window_size == Some(4096)));
    let full = store(
        None,
        &[int(ROOT), int(CHILD)],
        &[11, 12, 13, 14, 15, 16, 17, 18],
    );
    let partial = store(Some(int(CHILD)), &[int(PARTIAL)], &[19, 20]);
    let second = store(
        Some(int(ROOT)),
        &[int(1_421_338_498_458_684_300)],
        &[21, 22, 23, 24],
    );
    let offloaded = Moved {
        block_hash: int(CHILD),
        from: Medium::Tier(Tier::Gpu),
        to: Medium::Tier(Tier::Host),
    };
    let gone = Event::Gone {
        block_hashes: vec![int(PARTIAL), int(CHILD)],
    };
    let events: Vec<_> = items.into_iter().map(|item| item.events).collect();
    assert_eq!(
        events,
        [
            vec![created()],
            vec![Event::Stored(full), Event::Stored(partial)],
            vec![Event::Stored(second)],
            vec![Event::Moved(offloaded)],
            vec![Event::NothingMoved],
            vec![gone],
        ]
    );
}

#[test]
fn event_ids_count_for_each_rank_and_show_its_holes() {
    let items = body("adp2");

    let ids = |rank| -> Vec<_> {
        let own = items
            .iter()
            .filter(|item| item.dp_rank == Some(DpRank::new(rank)));
        own.map(|item| item.event_id.unwrap()).collect()
    };
    assert_eq!(ids(0), [0, 1, 2]);
    assert_eq!(ids(1), [0, 1, 3]);
    let first = store(None, &[int(ROOT)], &[11, 12, 13, 14]);
    assert_eq!(items[3].events, [Event::Stored(first)]);
    let gone = Event::Gone {
        block_hashes: vec![int(ROOT)],
    };
    assert_eq!(items[5].events, [gone]);
}

#[test]
fn a_body_of_the_second_cache_manager_means_what_it_says() {
    let items = body("v2");
    let text = |digits: &str| EngineHash::Bytes(digits.as_bytes().into());
    let root = text("dce828a527fe807308e8ea3285f26b74ae2eeef8cc3db9513e67ae90ed3ca3ae");
    let child = text("c9829ac698d2da8c02c21d7e366a5bddae2f43048a4d757889b8f0e0aea92354");

    let windows: Vec<_> = items.iter().map(|item| item.window_size.unwrap()).collect();
    assert_eq!(
        windows,
        [131_072, 1024, 131_072, 1024, 131_072, 1024, 131_072]
    );
    let groups: Vec<_> = items.iter().map(|item| item.layer_group.unwrap()).collect();
    assert_eq!(groups, [0, 1, 0, 1, 0, 1, 0]);
    assert_eq!(items[6].dp_rank, Some(DpRank::new(1)));
    let first = store(None, std::slice::from_ref(&root), &[11, 12, 13, 14]);
    let image = Stored {
        token_ids: Vec::new(),
        opaque_tokens: 4,
        salt: Some("tenant-A".into()),
        ..store(Some(root.clone()), &[child], &[0; 4])
    };
    assert_eq!(image.full_blocks().err(), Some(NotIndexable::Opaque));
    let last = store(None, &[int(15_918_017_572_746_723_443)], &[11, 12, 13, 14]);
    let events: Vec<_> = items.into_iter().map(|item| item.events).collect();
    assert_eq!(
        events,
        [
            vec![created()],
            vec![created()],
            vec![Event::Stored(first.clone())],
            vec![Event::Stored(first)],
            vec![Event::Stored(image)],
            vec![Event::Gone {
                block_hashes: vec![root]
            }],
            vec![Event::Stored(last)],
        ]
    );
}

#[test]
fn an_item_that_cannot_be_read_leaves_the_others_alone() {
    let items = decode(&json!([
        {"event_id": 1, "data": {"type": "removed"}},
        {"event_id": -1, "data": {"type": "removed", "block_hashes": []}},
        {"event_id": 2},
        {"event_id": 3, "data": {"type": "evaporated"}},
        7,
        {},
        {"event_id": 4, "data": {"type": "removed", "block_hashes": [-1, u64::MAX]}},
    ]));

    let ids: Vec<_> = items.iter().map(|item| item.event_id).collect();
    assert_eq!(ids, [Some(1), None, Some(2), Some(3), None, Some(4)]);
    let malformed = |item: &Item| matches!(item.events[..], [Event::Malformed { .. }]);
    let broken: Vec<_> = items.iter().map(malformed).collect();
    assert_eq!(broken, [true, true, true, false, true, false]);
    assert_eq!(
        items[3].events,
        [Event::Unknown {
            tag: "evaporated".to_owned()
        }]
    );
    let both = vec![int(u64::MAX), int(u64::MAX)];
    assert_eq!(items[5].events, [Event::Gone { block_hashes: both }]);
}

#[test]
fn an_empty_drain_is_no_items_and_other_json_is_refused() {
    assert_eq!(decode(&json!([])), []);
    assert_eq!(decode(&json!([{}, {}])), []);
    assert_eq!(decode_body(b"{}").unwrap_err().label(), "json");
}

#[test]
fn blocks_of_one_store_split_by_level_and_a_virtual_token_is_opaque() {
    let block = |hash: u64, level: u64, extra: u64| {
        json!({
            "block_hash": hash, "cache_level": level,
            "tokens": [{"token_id": hash, "token_extra_id": extra}],
        })
    };
    let blocks = [
        block(1, 0, 0),
        block(2, 1, 0),
        block(3, 1, 9),
        block(4, 1, 0),
    ];
    let data = json!({"type": "stored", "parent_hash": null, "blocks": blocks});

    let items = decode(&json!([{"event_id": 0, "data": data}]));

    let host = Stored {
        block_hashes: vec![int(2), int(3), int(4)],
        token_ids: vec![2],
        opaque_tokens: 2,
        block_size: 1,
        medium: Medium::Tier(Tier::Host),
        ..store(Some(int(1)), &[int(2)], &[2])
    };
    let expected = [
        Event::Stored(store(None, &[int(1)], &[1])),
        Event::Stored(host),
    ];
    assert_eq!(items[0].events, expected);
}
