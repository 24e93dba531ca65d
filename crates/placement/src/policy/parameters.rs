//! Numbers that a policy can be given, each with a name, a default and a range.

use std::ops::RangeInclusive;

/// One number of a policy.
pub(crate) struct Parameter<'a> {
    pub(crate) key: &'static str,
    pub(crate) range: RangeInclusive<f64>,
    pub(crate) value: &'a mut f64,
}

/// Declares the numbers of a policy: `name = default in least..=most;`, the name being the key in settings.
macro_rules! parameters {
    (
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$of_key:meta])* $key:ident = $default:literal in $least:literal..=$most:literal; )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $( $(#[$of_key])* pub $key: f64, )*
        }

        impl $name {
            /// Those described.
            pub const DEFAULT: Self = Self { $( $key: $default, )* };

            pub(crate) fn parameters(&mut self) -> Vec<$crate::policy::Parameter<'_>> {
                vec![ $( $crate::policy::Parameter {
                    key: stringify!($key),
                    range: $least..=$most,
                    value: &mut self.$key,
                }, )* ]
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::DEFAULT
            }
        }
    };
}

pub(crate) use parameters;
