//! A quick hasher for names and hashes, keyed so that nobody outside can choose colliding ones.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers with a secret of its own: for maps that are asked hundreds of times a decision.
#[derive(Clone, Debug)]
pub struct Folding(u64);

/// Multiplies eight bytes at a time and folds the product.
#[derive(Debug)]
pub struct Folder {
    state: u64,
    secret: u64,
}

impl Default for Folding {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0_u8) | 1)
    }
}

impl BuildHasher for Folding {
    type Hasher = Folder;

    #[inline]
    fn build_hasher(&self) -> Folder {
        Folder {
            state: self.0,
            secret: self.0.rotate_left(32) | 1,
        }
    }
}

/// The two halves of a product, folded into one.
#[inline]
pub const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ (product >> 64) as u64
}

impl Hasher for Folder {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.state = fold(self.state ^ value, self.secret).rotate_left(23) ^ self.secret;
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.state, self.secret)
    }
}
