//! Between the wire and the domain, both ways.

mod affinity;
mod affinity_calls;
mod decision;
pub(crate) mod dispatch_calls;
mod fleet;
mod index_calls;
mod index_store;
pub(crate) mod json;
mod kv;
mod load;
mod outcome;
mod placement;
mod share;

use bytes::Bytes;
use prost::Message;

pub(crate) use crate::wire::v1 as wire;
use crate::{DecodeError, Encoding};

/// A type of the domain with its message.
pub(crate) trait Wire: Sized {
    /// Names the thing in errors.
    const WHAT: &'static str;
    type Message: Message + Default;

    fn to_wire(&self) -> Self::Message;
    fn from_wire(message: Self::Message) -> Result<Self, DecodeError>;
}

impl<T: Wire> Encoding for T {
    fn to_bytes(&self) -> Bytes {
        Bytes::from(self.to_wire().encode_to_vec())
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let message = T::Message::decode(bytes).map_err(|source| DecodeError::Malformed {
            what: T::WHAT,
            source,
        })?;
        T::from_wire(message)
    }
}

/// A field that holds no valid value.
pub(crate) fn invalid<T: Wire>(field: &'static str, why: impl ToString) -> DecodeError {
    DecodeError::Field {
        what: T::WHAT,
        field,
        why: why.to_string(),
    }
}

/// A field that must be there.
pub(crate) fn required<T: Wire, V>(
    field: &'static str,
    value: Option<V>,
) -> Result<V, DecodeError> {
    value.ok_or_else(|| invalid::<T>(field, "is missing"))
}

/// Maps an enum of the domain onto its wire enum, both ways; `TryFrom<i32>` refuses the unspecified zero
/// and numbers this version does not know.
macro_rules! wire_enum {
    ($domain:ty, $wire:ident, { $($variant:ident => $wire_variant:ident),+ $(,)? }) => {
        impl From<$domain> for wire::$wire {
            fn from(value: $domain) -> Self {
                match value {
                    $(<$domain>::$variant => Self::$wire_variant,)+
                }
            }
        }

        impl TryFrom<wire::$wire> for $domain {
            type Error = &'static str;

            fn try_from(value: wire::$wire) -> Result<Self, Self::Error> {
                match value {
                    wire::$wire::Unspecified => Err("is unspecified"),
                    $(wire::$wire::$wire_variant => Ok(Self::$variant),)+
                }
            }
        }
    };
}
use wire_enum;

/// An answer that says no more than that it came.
macro_rules! wire_empty {
    ($name:ident, $wire:ident, $what:literal) => {
        pub(crate) struct $name;

        impl $crate::convert::Wire for $name {
            const WHAT: &'static str = $what;
            type Message = $crate::convert::wire::$wire;

            fn to_wire(&self) -> Self::Message {
                Self::Message {}
            }

            fn from_wire(_: Self::Message) -> Result<Self, $crate::DecodeError> {
                Ok(Self)
            }
        }
    };
}
pub(crate) use wire_empty;

/// Reads an enum field.
fn read_enum<T: Wire, W, D>(field: &'static str, number: i32) -> Result<D, DecodeError>
where
    W: TryFrom<i32>,
    D: TryFrom<W, Error = &'static str>,
{
    let unknown = || invalid::<T>(field, format!("has the unknown value {number}"));
    let value = W::try_from(number).map_err(|_| unknown())?;
    D::try_from(value).map_err(|why| invalid::<T>(field, why))
}
