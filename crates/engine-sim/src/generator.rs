//! What the fake model answers: as with greedy decoding, each token follows from the tokens before it.

use crate::tokenizer::{END, word};

/// One token in this many ends an answer, unless the request says otherwise.
const MEAN_ANSWER_TOKENS: u64 = 256;

/// The model after some tokens.
#[derive(Clone, Debug)]
pub(crate) struct Generator {
    state: u64,
}

impl Generator {
    /// The model after `prompt`.
    pub(crate) fn after(seed: u64, prompt: &[u32]) -> Self {
        let mut generator = Self { state: mixed(seed) };
        for token in prompt {
            generator.absorb(*token);
        }
        generator
    }

    /// The answer, at least one token long and at most `max`: it ends with [`END`] where the model says so,
    /// after at least `min` other tokens.
    pub(crate) fn answer(&mut self, min: u32, max: u32) -> Vec<u32> {
        let mut answer = Vec::new();
        while answer.len() < max as usize {
            let choice = mixed(self.state);
            let ends = choice.is_multiple_of(MEAN_ANSWER_TOKENS) && answer.len() >= min as usize;
            let token = if ends {
                END
            } else {
                word(choice / MEAN_ANSWER_TOKENS)
            };
            answer.push(token);
            if ends {
                break;
            }
            self.absorb(token);
        }
        answer
    }

    fn absorb(&mut self, token: u32) {
        self.state = (self.state ^ u64::from(token))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit.
pub(crate) const fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_depends_on_seed_and_prompt_and_goes_on_where_it_was_cut() {
        let prompt = [7, 8, 9];
        let whole = Generator::after(1, &prompt).answer(u32::MAX, 40);
        assert_eq!(whole, Generator::after(1, &prompt).answer(u32::MAX, 40));
        assert_ne!(whole, Generator::after(2, &prompt).answer(u32::MAX, 40));
        assert_ne!(whole, Generator::after(1, &[7, 8]).answer(u32::MAX, 40));
        let more = [&prompt[..], &whole[..15]].concat();
        assert_eq!(whole[15..], Generator::after(1, &more).answer(u32::MAX, 25));
    }

    #[test]
    fn most_answers_end_by_themselves_but_never_too_early() {
        let lengths: Vec<_> = (0..100)
            .map(|seed| Generator::after(seed, &[]).answer(10, 5_000))
            .collect();
        assert!(
            lengths
                .iter()
                .all(|it| it.len() > 10 && it.last() == Some(&END))
        );
    }
}
