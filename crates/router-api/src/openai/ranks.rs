//! The ranks that a client asks an engine for in its body: the router's to decide, as they are in headers.

use std::ops::Range;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::Fields;
use super::edit::{Splice, range_in, spliced};

impl<'a> Fields<'a> {
    /// Whether the body names a rank, in whichever engine's words.
    pub(crate) fn names_a_rank(&self) -> bool {
        self.disagg_prefill_dp_rank.is_some() || self.ranks().any(|_| true)
    }

    /// The rank that the body asks for; none where its fields leave it to the engine, as `null` and -1 do.
    pub(crate) fn asked_rank(&self) -> Option<&'a str> {
        let mut texts = self.ranks().map(RawValue::get);
        texts.find(|it| !matches!(*it, "null" | "-1"))
    }

    fn ranks(&self) -> impl Iterator<Item = &'a RawValue> {
        let fields = [self.routed_dp_rank, self.data_parallel_rank, self.id_slot];
        fields.into_iter().flatten()
    }
}

/// The body without the fields that name a rank: what a client may choose is asked of the engine in the engine's
/// own way. The rank of another engine's prefill stays where the client may choose. `fields` were read from
/// `body`.
pub(crate) fn without_ranks(body: &Bytes, fields: &Fields<'_>, client_may_choose: bool) -> Bytes {
    let prefill = fields.disagg_prefill_dp_rank;
    let prefill = prefill.filter(|_| !client_may_choose);
    let members = fields.ranks().chain(prefill);
    let mut members: Vec<_> = members.filter_map(|it| member(body, it)).collect();
    if members.is_empty() {
        return body.clone();
    }
    members.sort_by_key(|it| it.start);
    let mut cut: Vec<Range<usize>> = Vec::new();
    for member in members {
        match comma_after(body, member.end) {
            Some(end) => cut.push(member.start..end),
            None => {
                let mut start = space_before(body, member.start);
                // Neighbours cut before it have taken their commas along.
                while let Some(before) = cut.pop_if(|it| it.end == start) {
                    start = space_before(body, before.start);
                }
                let comma = start.checked_sub(1).filter(|at| body[*at] == b',');
                cut.push(comma.unwrap_or(start)..member.end);
            }
        }
    }
    let cut = cut.into_iter().map(|range| Splice {
        range,
        with: String::new(),
    });
    spliced(body, cut.collect())
}

/// Where the member with this value stands, from its name on. A name that means one of ours has no quotes in it,
/// however it is written.
fn member(body: &[u8], value: &RawValue) -> Option<Range<usize>> {
    let value = range_in(body, value)?;
    let colon = body[..value.start].iter().rposition(|it| *it == b':')?;
    let closing = body[..colon].iter().rposition(|it| *it == b'"')?;
    let opening = body[..closing].iter().rposition(|it| *it == b'"')?;
    Some(opening..value.end)
}

/// The end of the comma that follows, if one does.
fn comma_after(body: &[u8], at: usize) -> Option<usize> {
    let next = body[at..].iter().position(|it| !it.is_ascii_whitespace())?;
    (body[at + next] == b',').then_some(at + next + 1)
}

/// Where the space before begins.
fn space_before(body: &[u8], at: usize) -> usize {
    let space = body[..at].iter().rev();
    at - space.take_while(|it| it.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str, expected: &str) {
        let bytes = Bytes::copy_from_slice(body.as_bytes());
        let fields = Fields::read(&bytes).unwrap();
        let left = without_ranks(&bytes, &fields, false);
        assert_eq!(left, expected, "of {body}");
        let left: serde_json::Value = serde_json::from_slice(&left).unwrap();
        assert_eq!(left["model"], "m");
    }

    #[test]
    fn ranks_are_taken_out_wherever_they_stand_and_nothing_else_changes() {
        check(r#"{"model":"m", "x": 1.50}"#, r#"{"model":"m", "x": 1.50}"#);
        check(r#"{"id_slot":1,"model":"m"}"#, r#"{"model":"m"}"#);
        check(r#"{"model":"m","id_slot":1}"#, r#"{"model":"m"}"#);
        check(
            "{ \"model\" : \"m\" ,\n \"routed_dp_rank\" : 3 , \"x\": 1e3 }\n",
            "{ \"model\" : \"m\" ,\n  \"x\": 1e3 }\n",
        );
        check(
            r#"{"model":"m", "routed_dp_rank":null, "data_parallel_rank":[1,{"a":","}] , "id_slot" : "1" }"#,
            r#"{"model":"m" }"#,
        );
        check(
            r#"{"id_slot":0,"x":":\"","disagg_prefill_dp_rank":1,"model":"m","routed\u005fdp_rank":0}"#,
            r#"{"x":":\"","model":"m"}"#,
        );
        check(
            r#"{"routed_dp_rank":0,"id_slot":1,"model":"m","nested":{"id_slot":7}}"#,
            r#"{"model":"m","nested":{"id_slot":7}}"#,
        );
    }

    #[test]
    fn every_field_by_which_some_engine_takes_a_rank_is_taken_out() {
        for name in engine_wire::CLIENT_RANK_FIELDS {
            check(
                &format!(r#"{{"model":"m","{name}":1}}"#),
                r#"{"model":"m"}"#,
            );
        }
    }

    #[test]
    fn what_leaves_the_rank_to_the_engine_asks_for_none() {
        let check = |body: &str, named, asked| {
            let fields = Fields::read(body.as_bytes()).unwrap();
            assert_eq!(
                (fields.names_a_rank(), fields.asked_rank()),
                (named, asked),
                "{body}"
            );
        };
        check(r#"{"model":"m"}"#, false, None);
        check(r#"{"id_slot":-1,"routed_dp_rank":null}"#, true, None);
        check(r#"{"id_slot":-1,"data_parallel_rank":2}"#, true, Some("2"));
        check(r#"{"disagg_prefill_dp_rank":2}"#, true, None);
    }
}
