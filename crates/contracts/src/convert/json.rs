//! Records in JSON, one a line: the same messages as on the bus. A number is written with as many digits as tell it from
//! its neighbours, and read back to the same bits.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Wire, wire};
use crate::{DecisionRecord, DecodeError};

impl DecisionRecord {
    /// As one line of JSON.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Reads a line that [`DecisionRecord::to_json`] has written.
    pub fn from_json(line: &str) -> Result<Self, DecodeError> {
        from_json(line)
    }
}

fn to_json<T: Wire<Message: Serialize>>(record: &T) -> String {
    serde_json::to_string(&record.to_wire()).expect("keys are texts and nothing else can fail")
}

fn from_json<T: Wire<Message: DeserializeOwned>>(line: &str) -> Result<T, DecodeError> {
    let message = serde_json::from_str(line).map_err(|source| DecodeError::Json {
        what: T::WHAT,
        source,
    })?;
    T::from_wire(message)
}

/// Names an enum's numbers.
macro_rules! named {
    ($name:ident, $wire:ident) => {
        pub(crate) mod $name {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
                match wire::$wire::try_from(*number) {
                    Ok(it) => it.as_str_name().serialize(to),
                    Err(_) => number.serialize(to),
                }
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
                let name = String::deserialize(from)?;
                let known = wire::$wire::from_str_name(&name);
                let unknown = || D::Error::custom(format!("unknown name {name:?}"));
                known.map(i32::from).ok_or_else(unknown)
            }
        }
    };
}

named!(endpoint, Endpoint);
named!(target_state, TargetState);
named!(barred, Barred);

/// A number that may be infinite, or none at all: then it is a text.
pub(crate) mod any_number {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Number {
        Finite(f64),
        Other(String),
    }

    pub(crate) fn serialize<S: Serializer>(number: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        let number = number.map(|it| match it.is_finite() {
            true => Number::Finite(it),
            false => Number::Other(it.to_string()),
        });
        number.serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        let number = Option::<Number>::deserialize(from)?;
        number
            .map(|it| match it {
                Number::Finite(it) => Ok(it),
                Number::Other(text) => text.parse().map_err(D::Error::custom),
            })
            .transpose()
    }
}
