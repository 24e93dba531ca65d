//! Salts of real event shapes select the blocks: <https://github.com/sgl-project/sglang/issues/24568> (BC-45).

use domain::{DpRank, HashSeed, Target, Timestamp, sequence_hashes};
use engine_wire::{SpecKind, decode_batch, sglang, vllm};
use prefix_index::PrefixIndex;

use super::*;

const TOKENS: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
const BLOCK: u32 = 4;

/// Which engine announces.
#[derive(Clone, Copy, Debug)]
enum Engine {
    Vllm,
    Sglang,
    /// With pages of two tokens.
    SglangPages,
}

impl Engine {
    fn page(self) -> u32 {
        match self {
            Self::Vllm | Self::Sglang => BLOCK,
            Self::SglangPages => 2,
        }
    }

    /// The whole chain in two events, as the engine writes its salt; the names do not depend on it.
    fn batches(self, salt: Option<&str>) -> Vec<EventBatch> {
        let page = self.page() as usize;
        let name = |tokens: usize| EngineHash::Int((tokens / page) as u64);
        let stored = |from: usize, until: usize| Stored {
            block_hashes: (from + page..=until).step_by(page).map(name).collect(),
            parent: (0 < from).then(|| name(from)),
            token_ids: TOKENS[from..until].to_vec(),
            opaque_tokens: 0,
            block_size: self.page(),
            medium: Medium::Tier(Tier::Gpu),
            group: None,
            spec_kind: Some(SpecKind::FullAttention),
            lora: None,
            salt: salt.map(Arc::from),
            session: None,
        };
        let (ts, rank) = (Timestamp::from_micros(1), DpRank::new(0));
        let encoded = [(0, 4), (4, 12)].map(|(from, until)| match self {
            Self::Vllm => {
                let mut batch = vllm::BatchEncoder::new();
                batch.stored(&stored(from, until));
                batch.finish(ts, rank)
            }
            Self::Sglang | Self::SglangPages => {
                let mut batch = sglang::BatchEncoder::new();
                batch.stored(&stored(from, until));
                batch.finish(ts, rank)
            }
        });
        encoded.map(|it| decode_batch(&it).unwrap()).into()
    }

    fn translator(self) -> Translator {
        let size = |tokens| BlockSize::new(tokens).unwrap();
        let translator = Translator::new("m".parse().unwrap(), size(BLOCK), None);
        translator.gathering(size(self.page()), None)
    }
}

#[test]
fn the_same_tokens_under_two_salts_are_credited_only_where_the_salt_is_the_same() {
    let salts = [
        ("w1#1/0", Some("a")),
        ("w2#1/0", Some("b")),
        ("w3#1/0", None),
    ];
    for engine in [Engine::Vllm, Engine::Sglang, Engine::SglangPages] {
        let mut index = PrefixIndex::new(0);
        for (target, salt) in salts {
            let target: Target = target.parse().unwrap();
            let mut translator = engine.translator();
            for (seq, batch) in (0..).zip(engine.batches(salt)) {
                let translated = translator.translate(EventSeq::new(seq), &batch);
                assert!(translated.skipped.is_empty(), "{translated:?}");
                for op in translated.ops {
                    index.apply(&target, &op).unwrap();
                }
            }
        }
        let asked = [Some("a"), Some("b"), None, Some("c")];
        for salt in asked {
            let block_size = BlockSize::new(BLOCK).unwrap();
            let namespace = Namespace {
                model: "m".parse().unwrap(),
                lora: None,
                salt: salt.map(Arc::from),
                block_size,
            };
            let blocks = block_hashes(&TOKENS, block_size, HashSeed::of(None, salt));
            let groups = index.overlap(&namespace, &sequence_hashes(&blocks)).groups;
            let credited: Vec<(String, u32)> = groups
                .iter()
                .flat_map(|it| {
                    it.targets
                        .iter()
                        .map(|target| (target.to_string(), it.depths.gpu))
                })
                .collect();
            let expected = salts.iter().filter(|(_, it)| *it == salt);
            let expected: Vec<_> = expected.map(|(it, _)| ((*it).to_owned(), 3)).collect();
            assert_eq!(credited, expected, "{engine:?} {salt:?}");
        }
    }
}
