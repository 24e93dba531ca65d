//! From the lengths of a conversation's turns to their contents.

use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, Tokens};

use super::{Content, Turn};
use crate::random::Random;

/// The lengths of one turn, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lengths {
    pub(super) isl: u64,
    pub(super) osl: u64,
    /// How many of its first tokens, prompt and answer, the next turn repeats.
    pub(super) kept: u64,
    /// From the end of the turn before.
    pub(super) gap: Duration,
    /// Whether its prompt begins anew instead of extending the one before.
    pub(super) anew: bool,
}

/// Turns of these lengths. Each prompt extends the one before, and each that begins anew begins with `opening`; all
/// else is content that nobody else has.
pub(super) fn write(
    lengths: &[Lengths],
    opening: &[BlockHash],
    block_size: BlockSize,
    random: &mut Random,
) -> Vec<Turn> {
    let mut turns = Vec::with_capacity(lengths.len());
    let mut rest = lengths;
    while !rest.is_empty() {
        let next = rest[1..].iter().position(|it| it.anew);
        let (context, later) = rest.split_at(next.map_or(rest.len(), |it| it + 1));
        rest = later;
        let longest = context.iter().map(|it| it.isl.max(it.kept)).max();
        let content = extend(opening, longest.unwrap_or(0), block_size, random);
        turns.extend(context.iter().map(|it| Turn {
            content: Arc::clone(&content),
            isl: Tokens::new(it.isl),
            osl: Tokens::new(it.osl),
            kept: Tokens::new(it.kept.max(it.isl)),
            gap: it.gap,
        }));
    }
    turns
}

/// Content of this many tokens that begins with `opening`, or with as much of it as there is room for.
pub(super) fn extend(
    opening: &[BlockHash],
    tokens: u64,
    block_size: BlockSize,
    random: &mut Random,
) -> Arc<Content> {
    let count = blocks_of(tokens, block_size);
    let mut blocks = opening[..opening.len().min(count)].to_vec();
    blocks.resize_with(count, || BlockHash::new(random.next_u64()));
    Arc::new(Content::new(blocks))
}

/// The full blocks of this many tokens.
pub(super) fn blocks_of(tokens: u64, block_size: BlockSize) -> usize {
    // More blocks than a usize holds would fit into no memory.
    usize::try_from(tokens / u64::from(block_size.get())).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::{BlockHash, BlockSize};

    use super::{Lengths, write};
    use crate::random::Random;

    #[test]
    fn prompts_extend_each_other_until_one_begins_anew_with_the_opening() {
        let block_size = BlockSize::new(10).expect("a size of engines");
        let turn = |isl, anew| Lengths {
            isl,
            osl: 10,
            kept: isl + 5,
            gap: Duration::ZERO,
            anew,
        };
        let opening = [BlockHash::new(1), BlockHash::new(2)];
        let lengths = [
            turn(35, true),
            turn(59, false),
            turn(40, true),
            turn(15, true),
        ];

        let turns = write(&lengths, &opening, block_size, &mut Random::new(1));

        let prompts: Vec<_> = turns.iter().map(|it| it.prompt(block_size)).collect();
        assert_eq!(
            prompts.iter().map(|it| it.len()).collect::<Vec<_>>(),
            [3, 5, 4, 1]
        );
        assert!(prompts[1].starts_with(prompts[0]));
        assert_eq!(prompts[2][..2], prompts[0][..2]);
        assert_ne!(prompts[2][2], prompts[0][2]);
        assert_eq!(prompts[3][0], prompts[0][0]);
        assert_eq!(turns[0].keeps(block_size).len(), 4);
    }
}
