//! Block and sequence hashes equal Dynamo's published vectors.

use domain::{BlockHash, BlockSize, HashSeed, block_hashes, prefix_hashes, sequence_hashes};
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[test]
fn hashes_equal_dynamos_golden_vectors() {
    let tokens: Vec<u32> = (1..=13).collect();

    let blocks = block_hashes(
        &tokens,
        BlockSize::new(4).unwrap(),
        HashSeed::of(None, None),
    );

    let values: Vec<u64> = blocks.iter().map(|it| it.get()).collect();
    assert_eq!(
        values,
        [
            14_643_705_804_678_351_452,
            16_777_012_769_546_811_212,
            483_935_686_894_639_516
        ]
    );
    let sequences: Vec<u64> = sequence_hashes(&blocks).iter().map(|it| it.get()).collect();
    assert_eq!(
        sequences,
        [
            14_643_705_804_678_351_452,
            4_945_711_292_740_353_085,
            12_583_592_247_330_656_132
        ]
    );
}

#[test]
fn blocks_are_as_large_as_a_block_may_be_and_no_larger() {
    let largest = BlockSize::new(BlockSize::MAX).unwrap();
    let tokens = vec![1; BlockSize::MAX as usize];
    let seed = HashSeed::of(None, None);

    assert_eq!(block_hashes(&tokens, largest, seed).len(), 1);
    assert_eq!(block_hashes(&tokens[1..], largest, seed), []);
    for refused in [0, BlockSize::MAX + 1, u32::MAX] {
        let error = BlockSize::new(refused).unwrap_err().to_string();
        assert_eq!(error, "is not 1 to 65536 tokens");
    }
}

#[test]
fn lora_and_salt_set_namespaces_apart_and_empty_counts_as_none() {
    let hash = |lora, salt| -> BlockHash {
        block_hashes(
            &[1, 2],
            BlockSize::new(2).unwrap(),
            HashSeed::of(lora, salt),
        )[0]
    };

    let plain = hash(None, None);
    assert_eq!(hash(Some(""), Some("")), plain);
    let all = [
        plain,
        hash(Some("a"), None),
        hash(None, Some("a")),
        hash(Some("a"), Some("a")),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[..index].contains(one));
    }
}

#[test]
fn a_block_larger_than_the_stack_buffer_hashes_like_any_other() {
    let tokens: Vec<u32> = (0..5000).collect();
    let size = BlockSize::new(2500).unwrap();

    let both = block_hashes(&tokens, size, HashSeed::of(None, None));
    let second = block_hashes(&tokens[2500..], size, HashSeed::of(None, None));

    assert_eq!(both[1], second[0]);
}

proptest! {
    #[test]
    fn blocks_of_every_size_are_hashed_as_bytes_and_chained(
        tokens in prop::collection::vec(any::<u32>(), 0..600),
        size in prop_oneof![Just(16), Just(32), Just(64), 1..200_u32],
        salt in prop::option::of("[a-z]{0,3}"),
    ) {
        let block_size = BlockSize::new(size).unwrap();
        let seed = HashSeed::of(None, salt.as_deref());
        let number = match salt.as_deref().filter(|it| !it.is_empty()) {
            Some(salt) => 1337_u64.wrapping_add(xxh3_64_with_seed(salt.as_bytes(), 1)),
            None => 1337,
        };
        let hash = |block: &[u32]| {
            let bytes: Vec<u8> = block.iter().flat_map(|it| it.to_le_bytes()).collect();
            BlockHash::new(xxh3_64_with_seed(&bytes, number))
        };
        let expected: Vec<BlockHash> = tokens.chunks_exact(size as usize).map(hash).collect();

        let blocks = block_hashes(&tokens, block_size, seed);

        prop_assert_eq!(&blocks, &expected);
        prop_assert_eq!(prefix_hashes(&tokens, block_size, seed), sequence_hashes(&blocks));
    }
}
