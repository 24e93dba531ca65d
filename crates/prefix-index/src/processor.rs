//! What takes instructions of the processor's own, behind safe functions: reading ahead, and comparing many
//! words at a time. All that is unsafe in this crate is here.
//!
//! Its tests also run under valgrind, which follows every load, and finds none outside of what it is given:
//! `valgrind --error-exitcode=1 target/debug/deps/prefix_index-* processor`. Miri does not run assembler.

#![expect(
    unsafe_code,
    reason = "a hint to the cache, and a load of several words at once, have no safe form"
)]

use domain::{BlockHash, SequenceHash};

use crate::arena::{Line, WORDS, word};

/// Asks for `line` to be brought near, without waiting for it.
#[inline(always)]
pub(crate) fn read_ahead(line: &Line) {
    #[cfg(all(target_arch = "x86_64", not(all(loom, test))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint. It reads nothing that the program could see, and faults nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(all(loom, test)))))]
    std::hint::black_box(line.get(0));
}

/// A hash, which is a number.
///
/// # Safety
///
/// It is as large as its number, and nothing but that.
pub(crate) unsafe trait Word: Copy {
    fn number(self) -> u64;
}

// SAFETY: it is the number.
unsafe impl Word for u64 {
    #[inline]
    fn number(self) -> u64 {
        self
    }
}

// SAFETY: it has one field, which is the number.
unsafe impl Word for BlockHash {
    #[inline]
    fn number(self) -> u64 {
        self.get()
    }
}

// SAFETY: it has one field, which is the number.
unsafe impl Word for SequenceHash {
    #[inline]
    fn number(self) -> u64 {
        self.get()
    }
}

/// How many of the first of `wanted`, eight at a time, are the words of `lines` from `from` on.
#[inline]
pub(crate) fn eights_alike<W: Word>(lines: &[Line], from: usize, wanted: &[W]) -> usize {
    const { assert!(size_of::<W>() == size_of::<u64>(), "a word is 64 bits") };
    let there = (lines.len() * WORDS).saturating_sub(from);
    let eights = there.min(wanted.len()) / WORDS;
    #[cfg(all(target_arch = "x86_64", not(all(loom, test))))]
    if eights != 0 && is_x86_feature_detected!("avx2") {
        let words = lines.as_ptr().cast::<u64>().wrapping_add(from);
        // SAFETY: so many words lie behind `from` in `lines`, which are words one after the other, and so many
        // in `wanted`. The processor has AVX2.
        return WORDS * unsafe { wide::eights_alike(words, wanted.as_ptr().cast(), eights) };
    }
    let differs = |at: usize| word(lines, from + at) ^ wanted[at].number();
    let alike = |at: &usize| (*at..at + WORDS).fold(0, |any, at| any | differs(at)) == 0;
    WORDS * (0..eights * WORDS).step_by(WORDS).take_while(alike).count()
}

#[cfg(all(target_arch = "x86_64", not(all(loom, test))))]
mod wide {
    use std::arch::asm;

    /// How many of the first of `eights` times eight words are alike, in eights.
    ///
    /// In assembler, because the writer may be changing `words` meanwhile: a load of its own language would have
    /// to be one word's. What is read then is a wrong number and nothing worse, as in the rest of a lookup,
    /// whose answer does not count if a version has changed.
    ///
    /// # Safety
    ///
    /// The processor has AVX2, `eights` is not 0, and so many words may be read behind either pointer.
    #[inline]
    pub(super) unsafe fn eights_alike(
        words: *const u64,
        wanted: *const u64,
        eights: usize,
    ) -> usize {
        let mut left = eights;
        // SAFETY: it reads 64 bytes behind each pointer for each of `eights`, as the caller allows, writes
        // nothing, and leaves the stack alone.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [{words}]",
                "vmovdqu ymm1, [{words} + 32]",
                "vpxor ymm0, ymm0, [{wanted}]",
                "vpxor ymm1, ymm1, [{wanted} + 32]",
                "vpor ymm0, ymm0, ymm1",
                "vptest ymm0, ymm0",
                "jnz 3f",
                "add {words}, 64",
                "add {wanted}, 64",
                "dec {left}",
                "jnz 2b",
                "3:",
                "vzeroupper",
                words = inout(reg) words => _,
                wanted = inout(reg) wanted => _,
                left = inout(reg) left,
                out("xmm0") _,
                out("xmm1") _,
                options(nostack, readonly),
            );
        }
        eights - left
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::arena::{Line, WORDS, agreeing};

    const LINES: usize = 4;

    /// Lines whose words are 1, 2 and so on.
    fn lines() -> Vec<Line> {
        let lines: Vec<Line> = (0..LINES).map(|_| Line::default()).collect();
        for (at, line) in lines.iter().enumerate() {
            (0..WORDS).for_each(|word| line.set(word, (at * WORDS + word) as u64 + 1));
        }
        lines
    }

    #[test]
    fn as_many_agree_as_word_by_word_wherever_the_first_other_is() {
        let (lines, words) = (lines(), LINES * WORDS);
        for from in 0..=words {
            let there = words - from;
            for len in 0..=there + WORDS + 1 {
                // Its own allocation, so that a load behind its end is seen.
                let mut wanted: Vec<u64> = (0..len).map(|it| (from + it) as u64 + 1).collect();
                assert_eq!(agreeing(&lines, from, &wanted), len.min(there));
                for other in 0..len {
                    wanted[other] ^= 1 << (other % 64);
                    let same = agreeing(&lines, from, &wanted);
                    assert_eq!(same, other.min(there), "{len} from {from}");
                    wanted[other] ^= 1 << (other % 64);
                }
            }
        }
    }
}
