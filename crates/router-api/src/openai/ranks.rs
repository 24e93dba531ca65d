//! The ranks that a client asks an engine for in its body: the router's to decide, as they are in headers.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::Fields;
use super::members::without;

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
    without(body, fields.ranks().chain(prefill))
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
