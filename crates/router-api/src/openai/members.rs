//! Taking members out of a body, in place.

use std::ops::Range;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::edit::{Splice, range_in, spliced};

/// The body without the members that have these values, which were borrowed from it.
pub(super) fn without<'a>(body: &Bytes, values: impl IntoIterator<Item = &'a RawValue>) -> Bytes {
    let members = values.into_iter();
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
