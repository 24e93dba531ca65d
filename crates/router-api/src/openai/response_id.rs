//! The id of an answer of the Responses API, read as it passes.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// An answer tells its id at its start: in the first members of its object, or in its first event. What has
/// none by then is passed on without a further look.
const LOOKED_AT: usize = 64 << 10;
/// What introduces the object of an event.
const DATA: &[u8] = b"data:";

/// The start of an answer, until its id is known.
#[derive(Debug, Default)]
pub(crate) struct ResponseId {
    start: Vec<u8>,
    done: bool,
}

impl ResponseId {
    /// Takes what comes next; the id, once, as soon as it is known.
    pub(crate) fn see(&mut self, chunk: &[u8]) -> Option<String> {
        if self.done {
            return None;
        }
        let room = LOOKED_AT - self.start.len();
        self.start
            .extend_from_slice(&chunk[..room.min(chunk.len())]);
        let id = id_in(&self.start);
        if id.is_some() || self.start.len() == LOOKED_AT {
            self.done = true;
            self.start = Vec::new();
        }
        id
    }
}

/// The id in the start of an answer, in one piece or in events.
fn id_in(start: &[u8]) -> Option<String> {
    if start.trim_ascii_start().starts_with(b"{") {
        return member(start, "id");
    }
    let lines = start.split(|byte| *byte == b'\n');
    let mut objects = lines.filter_map(|line| line.strip_prefix(DATA));
    objects.find_map(|object| member(object, "response"))
}

/// The text of the object's member `name`, or, where that is an object, of its `id`; the rest of the object may
/// be missing.
fn member(object: &[u8], name: &'static str) -> Option<String> {
    let mut found = None;
    let wanted = Wanted {
        name,
        found: &mut found,
    };
    let mut json = serde_json::Deserializer::from_slice(object);
    // What ends too early, or goes on after the id, has told all the same.
    let _rest = json.deserialize_any(wanted);
    found
}

/// Looks for a member, and leaves the rest unread.
struct Wanted<'a> {
    name: &'static str,
    found: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an object with {}", self.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            if name != self.name {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let inner = Wanted {
                name: "id",
                found: self.found,
            };
            return members.next_value_seed(inner);
        }
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        *self.found = Some(text.to_owned());
        Ok(())
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Wanted<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id of an answer, however it is cut; and after how many bytes it is known.
    fn check(answer: &str, expected: Option<&str>) {
        for size in [1, 7, 1_000] {
            let mut reader = ResponseId::default();
            let chunks = answer.as_bytes().chunks(size);
            let ids: Vec<String> = chunks.filter_map(|it| reader.see(it)).collect();
            assert_eq!(ids, Vec::from_iter(expected), "{answer} by {size}");
        }
    }

    #[test]
    fn the_id_is_read_from_an_answer_in_one_piece() {
        check(
            r#"{"id":"resp_1","output":[{"id":"msg_1"}]}"#,
            Some("resp_1"),
        );
        check(r#" {"a":{"id":"no"},"id" : "r\u0031","#, Some("r1"));
        check(
            r#"{"output":[{"id":"msg_1"}],"id":"resp_1"}"#,
            Some("resp_1"),
        );
        for none in [
            "",
            "7",
            "[]",
            r#"{"id":7}"#,
            r#"{"id":null}"#,
            r#"{"a":"id"}"#,
            "{x",
        ] {
            check(none, None);
        }
    }

    #[test]
    fn the_id_is_read_from_the_first_event_that_has_one() {
        let created =
            r#"{"type":"response.created","response":{"object":"response","id":"resp_1"}}"#;
        let events = format!(
            "event: ping\ndata: {{\"id\":\"no\"}}\n\nevent: response.created\r\ndata: {created}\r\n\r\ndata: x"
        );
        check(&events, Some("resp_1"));
        check(&format!("data:{created}"), Some("resp_1"));
        check("data: [DONE]\n\n", None);
        check("event: x\n", None);
    }

    #[test]
    fn an_answer_that_tells_no_id_is_not_kept() {
        let mut reader = ResponseId::default();
        let chunk = format!(r#"{{"output":"{}"#, "x".repeat(40_000));
        assert_eq!(reader.see(chunk.as_bytes()), None);
        assert_eq!(reader.see(chunk.as_bytes()), None);
        assert!(reader.done && reader.start.is_empty());
        assert_eq!(reader.see(br#"{"id":"resp_1"}"#), None);
    }
}
