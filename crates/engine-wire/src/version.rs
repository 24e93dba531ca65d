//! Versions of engines, as far as they decide what an engine understands.

use std::fmt;

/// The numbers a version begins with. What follows, such as `rc1`, `.post1` or `+cpu`, does not count: a
/// candidate of a release understands what the release does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl Version {
    /// Before all others.
    pub const ZERO: Self = Self::new(0, 0, 0);

    /// The version with these numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self([major, minor, patch])
    }

    /// Reads a version such as `0.5.10.post1`, or a build of llama.cpp such as `b4567-0fd7ca7`. None where the
    /// text says nothing: an empty one, a build outside a release (`0.1.dev9+gab12cd3`), `b0-unknown`.
    pub fn parse(text: &str) -> Option<Self> {
        let release = text.strip_prefix(['b', 'v']).unwrap_or(text);
        let mut numbers = [0; 3];
        let mut rest = release;
        for (index, number) in numbers.iter_mut().enumerate() {
            let digits = rest.find(|it: char| !it.is_ascii_digit());
            let (digits, after) = rest.split_at(digits.unwrap_or(rest.len()));
            if index == 0 || !digits.is_empty() {
                *number = digits.parse().ok()?;
            }
            match after.strip_prefix('.') {
                Some(after) => rest = after,
                None => break,
            }
        }
        // What a checkout without its tags calls itself.
        let nameless = release.starts_with("0.1.dev") || numbers == [0; 3];
        (!nameless).then_some(Self(numbers))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_engines_write_them() {
        let check = |text: &str, expected: Option<(u32, u32, u32)>| {
            let expected = expected.map(|(major, minor, patch)| Version::new(major, minor, patch));
            assert_eq!(Version::parse(text), expected, "{text}");
        };
        check("0.32.0+cpu", Some((0, 32, 0)));
        check("0.5.10.post1", Some((0, 5, 10)));
        check("0.11.2rc1", Some((0, 11, 2)));
        check("0.11.3.dev5+g0fd7ca7", Some((0, 11, 3)));
        check("1.3.0rc27", Some((1, 3, 0)));
        check("v0.9", Some((0, 9, 0)));
        check("b4567-0fd7ca7", Some((4567, 0, 0)));
        for nothing in [
            "",
            "b0-unknown",
            "0.1.dev9+gab12cd3",
            "0.0.0",
            "main",
            "99999999999",
        ] {
            check(nothing, None);
        }
        assert!(Version::new(0, 5, 9) < Version::new(0, 5, 10));
    }
}
