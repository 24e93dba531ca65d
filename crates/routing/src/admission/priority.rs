//! How urgent a request is.

/// How urgent a request is: whoever has a higher one goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(i8);

impl Priority {
    /// The lowest.
    pub const LOWEST: Self = Self(-10);
    /// That of requests which say nothing.
    pub const NORMAL: Self = Self(0);
    /// The highest.
    pub const HIGHEST: Self = Self(10);
    /// How many steps lead from the lowest to the highest.
    pub(super) const STEPS: u8 = Self::HIGHEST.0.abs_diff(Self::LOWEST.0);

    /// A number from -10 to 10; none for any other.
    pub fn new(number: i64) -> Option<Self> {
        let priority = Self::nearest(number);
        (i64::from(priority.0) == number).then_some(priority)
    }

    /// The one nearest to `number`.
    pub fn nearest(number: i64) -> Self {
        let number = number.clamp(Self::LOWEST.0.into(), Self::HIGHEST.0.into());
        Self(i8::try_from(number).expect("it is between two of them"))
    }

    /// Its number.
    pub const fn get(self) -> i8 {
        self.0
    }

    /// The class of this priority after so many steps, at most the highest.
    pub(super) fn raised(self, steps: u64) -> Self {
        let steps = i64::try_from(steps.min(Self::STEPS.into())).expect("there are few steps");
        Self::nearest(i64::from(self.0) + steps)
    }
}
