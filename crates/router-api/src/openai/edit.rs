//! The few edits that a body takes on its way to the engine.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Fields;
use super::fields::present;
use super::members::without;

/// An extra argument of vLLM that makes it announce reused blocks again, as if they had been filled.
const REPORT_MODE: &str = "kv_cache_report_mode";

/// A body as the engine gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edited {
    pub(crate) body: Bytes,
    /// Whether the engine was asked for a usage frame that the client did not ask for.
    pub(crate) usage_injected: bool,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    include_usage: Option<&'a RawValue>,
}

/// Replaces a range of the body.
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) with: String,
}

/// Asks for usage where `inject_usage` and the client did not, takes out what would mislead the index, and puts `salt`
/// in the place of what the client gave. `fields` were read from `body`.
pub(crate) fn edit(
    body: &Bytes,
    fields: &Fields<'_>,
    inject_usage: bool,
    salt: Option<&str>,
) -> Edited {
    let mut splices = Vec::new();
    let usage = match inject_usage && fields.streams() {
        true => usage_splice(body, fields.stream_options),
        false => None,
    };
    let usage_injected = usage.is_some();
    splices.extend(usage);
    splices.extend(report_mode_splice(body, fields.vllm_xargs));
    splices.extend(salt.and_then(|it| salt_splice(body, fields, it)));
    let body = match splices.is_empty() {
        true => body.clone(),
        false => spliced(body, splices),
    };
    Edited {
        body,
        usage_injected,
    }
}

/// The body without a salt, for an engine that takes none.
pub(crate) fn without_salt(body: &Bytes) -> Bytes {
    match Fields::read(body) {
        Ok(fields) => without(body, fields.cache_salt),
        // What cannot be read is an error that the engine shall report.
        Err(_) => body.clone(),
    }
}

fn usage_splice(body: &[u8], options: Option<&RawValue>) -> Option<Splice> {
    const ASKED: &str = r#""include_usage":true"#;
    let Some(raw) = options else {
        return added(body, &format!(r#""stream_options":{{{ASKED}}}"#));
    };
    let at = range_in(body, raw)?;
    if raw.get() == "null" {
        return Some(Splice {
            range: at,
            with: format!("{{{ASKED}}}"),
        });
    }
    // What is no object is an error that the engine shall report.
    let parsed: StreamOptions<'_> = serde_json::from_str(raw.get()).ok()?;
    match parsed.include_usage {
        Some(asked) if asked.get() == "true" => None,
        Some(asked) => Some(Splice {
            range: range_in(body, asked)?,
            with: "true".to_owned(),
        }),
        None => {
            let inside = raw.get().strip_prefix('{')?.trim_start();
            let comma = if inside.starts_with('}') { "" } else { "," };
            Some(Splice {
                range: at.start + 1..at.start + 1,
                with: format!("{ASKED}{comma}"),
            })
        }
    }
}

/// A salt made here has nothing that JSON would escape.
fn salt_splice(body: &[u8], fields: &Fields<'_>, salt: &str) -> Option<Splice> {
    match fields.cache_salt {
        Some(given) => Some(Splice {
            range: range_in(body, given)?,
            with: format!(r#""{salt}""#),
        }),
        None => added(body, &format!(r#""cache_salt":"{salt}""#)),
    }
}

/// Puts a member behind the others. The body is an object with at least a model, or it would not have been read.
fn added(body: &[u8], member: &str) -> Option<Splice> {
    let end = body.iter().rposition(|byte| *byte == b'}')?;
    Some(Splice {
        range: end..end,
        with: format!(",{member}"),
    })
}

fn report_mode_splice(body: &[u8], xargs: Option<&RawValue>) -> Option<Splice> {
    let raw = xargs.filter(|raw| raw.get().contains(REPORT_MODE))?;
    let mut arguments: BTreeMap<String, &RawValue> = serde_json::from_str(raw.get()).ok()?;
    arguments.remove(REPORT_MODE)?;
    Some(Splice {
        range: range_in(body, raw)?,
        with: serde_json::to_string(&arguments).ok()?,
    })
}

/// Where a value that was borrowed from `body` stands in it.
pub(super) fn range_in(body: &[u8], raw: &RawValue) -> Option<Range<usize>> {
    let text = raw.get();
    let start = (text.as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
    let end = start.checked_add(text.len())?;
    (end <= body.len()).then_some(start..end)
}

pub(super) fn spliced(body: &[u8], mut splices: Vec<Splice>) -> Bytes {
    splices.sort_by_key(|splice| splice.range.start);
    let added: usize = splices.iter().map(|splice| splice.with.len()).sum();
    let mut edited = Vec::with_capacity(body.len() + added);
    let mut from = 0;
    for splice in &splices {
        edited.extend_from_slice(&body[from..splice.range.start]);
        edited.extend_from_slice(splice.with.as_bytes());
        from = splice.range.end;
    }
    edited.extend_from_slice(&body[from..]);
    edited.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &str, injected: bool) {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let fields = Fields::read(&bytes).unwrap();
        let edited = edit(&bytes, &fields, true, None);
        assert_eq!(edited.body, expected, "of {body}");
        assert_eq!(edited.usage_injected, injected, "of {body}");
    }

    #[test]
    fn usage_is_asked_for_and_nothing_else_changes() {
        check(
            "{\"model\":\"m\" , \"x\": 1.50,\"stream\":true }\n",
            "{\"model\":\"m\" , \"x\": 1.50,\"stream\":true ,\"stream_options\":{\"include_usage\":true}}\n",
            true,
        );
        check(
            r#"{"stream_options": {"a":[1]}, "model":"m","stream":true}"#,
            r#"{"stream_options": {"include_usage":true,"a":[1]}, "model":"m","stream":true}"#,
            true,
        );
        check(
            r#"{"model":"m","stream_options":{ },"stream":true}"#,
            r#"{"model":"m","stream_options":{"include_usage":true },"stream":true}"#,
            true,
        );
        check(
            r#"{"model":"m","stream_options":null,"stream":true}"#,
            r#"{"model":"m","stream_options":{"include_usage":true},"stream":true}"#,
            true,
        );
        check(
            r#"{"model":"m","stream_options":{"include_usage":null},"stream":true}"#,
            r#"{"model":"m","stream_options":{"include_usage":true},"stream":true}"#,
            true,
        );
        check(
            r#"{"model":"m","stream_options":{"include_usage": false},"stream":true}"#,
            r#"{"model":"m","stream_options":{"include_usage": true},"stream":true}"#,
            true,
        );
    }

    #[test]
    fn who_asks_for_usage_or_does_not_stream_keeps_the_body() {
        for body in [
            r#"{"model":"m","stream_options":{"include_usage":true},"stream":true}"#,
            r#"{"model":"m","stream":false}"#,
            r#"{"model":"m"}"#,
            r#"{"model":"m","stream":true,"stream_options":7}"#,
        ] {
            check(body, body, false);
        }
    }

    #[test]
    fn a_salt_takes_the_place_of_what_the_client_gave() {
        let check = |body: &str, expected: &str| {
            let bytes = Bytes::copy_from_slice(body.as_bytes());
            let fields = Fields::read(&bytes).unwrap();
            let edited = edit(&bytes, &fields, true, Some("made"));
            assert_eq!(edited.body, expected, "of {body}");
            let left = without_salt(&edited.body);
            let left: serde_json::Value = serde_json::from_slice(&left).unwrap();
            assert_eq!(
                (&left["model"], &left["cache_salt"]),
                (&"m".into(), &().into())
            );
        };
        check(r#"{"model":"m"}"#, r#"{"model":"m","cache_salt":"made"}"#);
        for given in [r#""given""#, "null", r#""""#, r#""a\"b\u0022,""#] {
            check(
                &format!(r#"{{"cache_salt": {given} ,"model":"m"}}"#),
                r#"{"cache_salt": "made" ,"model":"m"}"#,
            );
        }
        check(
            r#"{"model":"m","cache\u005fsalt":"given"}"#,
            r#"{"model":"m","cache\u005fsalt":"made"}"#,
        );
        check(
            r#"{"model":"m","stream":true}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"cache_salt":"made"}"#,
        );
        let twice = br#"{"model":"m","cache_salt":"a","cache_salt":"b"}"#;
        assert!(Fields::read(twice).is_err());
        let plain = Bytes::from_static(br#"{"model":"m"}"#);
        assert_eq!(without_salt(&plain), plain);
    }

    #[test]
    fn the_report_mode_is_taken_out_and_its_neighbours_stay() {
        check(
            r#"{"model":"m","vllm_xargs":{"b":1.0,"kv_cache_report_mode":"full","a":"x"},"n":1}"#,
            r#"{"model":"m","vllm_xargs":{"a":"x","b":1.0},"n":1}"#,
            false,
        );
    }
}
