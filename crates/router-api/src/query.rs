//! The query of a URL of the admin API, as text by name.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use crate::error::{ApiError, excerpt};

/// What a query says, percent-decoded.
#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<&'static str, String>);

impl Query {
    /// Reads a query in which nothing but `names` makes sense, each at most once.
    pub(crate) fn read(text: Option<&str>, names: &[&'static str]) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for pair in text
            .unwrap_or_default()
            .split('&')
            .filter(|it| !it.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = names.iter().find(|it| **it == name) else {
                let names = names.join(", ");
                return Err(ApiError::invalid(format!(
                    "{:?} is unknown here: say {names}",
                    excerpt(name)
                )));
            };
            let value =
                decoded(value).ok_or_else(|| wrong(name, &"it is not percent-encoded UTF-8"))?;
            if query.0.insert(*name, value).is_some() {
                return Err(wrong(name, &"say it once"));
            }
        }
        Ok(query)
    }

    pub(crate) fn text(&self, name: &'static str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn parsed<T: FromStr<Err: Display>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, ApiError> {
        let parsed = self.text(name).map(str::parse).transpose();
        parsed.map_err(|error: T::Err| wrong(name, &excerpt(&error.to_string())))
    }
}

/// The refusal of a parameter.
pub(crate) fn wrong(param: &'static str, why: &dyn Display) -> ApiError {
    ApiError::Invalid {
        message: format!("{param}: {why}"),
        param: Some(param),
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = str::from_utf8(digits).ok()?;
                u8::from_str_radix(digits, 16)
                    .ok()
                    .filter(|_| !digits.starts_with('+'))?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_by_name_and_decoded() {
        let query = Query::read(Some("a=x%2Fy+z&b="), &["a", "b", "c"]).unwrap();
        assert_eq!(query.text("a"), Some("x/y z"));
        assert_eq!((query.text("b"), query.text("c")), (Some(""), None));
        assert!(query.parsed::<u32>("b").is_err());
        assert_eq!(query.parsed::<u32>("c").unwrap(), None);
        assert!(Query::read(None, &[]).is_ok());
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for text in ["d=1", "a=1&a=2", "a=%2", "a=%+2", "a=%zz", "a=%ff"] {
            let error = Query::read(Some(text), &["a"]).unwrap_err().to_string();
            assert!(error.contains(&text[..1]), "{text}: {error}");
        }
    }
}
