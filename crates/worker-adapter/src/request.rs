//! What of a request is changed before its engine gets it: the rank, the conversation, and the wish to hear which rank
//! ran.

use bytes::{BufMut, Bytes, BytesMut};
use contracts::rpc::CallHead;
use domain::{ConversationId, DpRank, Endpoint, EngineKind, HeaderSpace, Worker};
use engine_wire::trtllm::{CONVERSATION_FIELD, conversation_params};
use engine_wire::{CLIENT_RANK_HEADERS, Carrier, Report, Row};
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::headers::to_engine;
use crate::passage::Reported;

/// A request as its engine gets it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Rank headers of the client's that were removed.
    pub(crate) stripped: u64,
    /// The number by which it names a rank.
    pub(crate) asked_rank: Option<u32>,
    /// What its answer is going to say of its making.
    pub(crate) reported: Reported,
}

/// Why a rank cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RankRefused {
    /// The worker has other ranks.
    #[error("it has ranks {start} to {end}", end = start + size.saturating_sub(1))]
    NotOwned { start: u32, size: u32 },
    /// Its operator says that its front end takes none.
    #[error(
        "it takes no rank (header_space = \"none\"); set header_space to \"global\" or \"local\""
    )]
    NoSpace,
    /// The engine would ignore it.
    #[error("{engine} {version} lets nobody choose a rank at {path}, so none may be asked for")]
    NoControl {
        engine: &'static str,
        version: String,
        path: String,
    },
    /// It belongs into a body that has no place for it.
    #[error("the body is not a JSON object, so {field} cannot be added to it")]
    NoObject { field: &'static str },
}

/// Makes the request that `worker` gets.
pub(crate) fn outgoing(
    worker: &Worker,
    head: &CallHead,
    body: Bytes,
) -> Result<Outgoing, RankRefused> {
    let (headers, stripped) = to_engine(&head.headers, &CLIENT_RANK_HEADERS);
    let mut outgoing = Outgoing {
        headers,
        body,
        stripped,
        asked_rank: None,
        reported: Reported::Nothing,
    };
    if worker.engine == EngineKind::LlamaCpp {
        // It closes the connection of a streamed answer though it promised to keep it, and the next request would be
        // lost there.
        let close = HeaderValue::from_static("close");
        outgoing.headers.insert(CONNECTION, close);
    }
    let endpoint = Endpoint::of_path(&head.path);
    let row = endpoint.map(|it| Row::of(worker.engine, &worker.version, it));
    if let Some(rank) = head.dp_rank
        && let Some(number) = rank_number(worker, rank)?
    {
        match row.map_or(Carrier::Nothing, |row| row.carrier) {
            // The only rank is the one that runs.
            Carrier::Nothing if worker.dp_size == 1 => {}
            carrier => outgoing.name_rank(worker, carrier, number, &head.path)?,
        }
    }
    if worker.capability.owns_bindings
        && matches!(endpoint, Some(Endpoint::Chat | Endpoint::Completions))
        && let Some(conversation) = &head.conversation
    {
        outgoing.name_conversation(conversation);
    }
    if let Some(Report::Asked(field)) = row.map(|row| row.report) {
        outgoing.ask_for_report(field);
    }
    Ok(outgoing)
}

impl Outgoing {
    fn name_rank(
        &mut self,
        worker: &Worker,
        carrier: Carrier,
        number: u32,
        path: &str,
    ) -> Result<(), RankRefused> {
        self.asked_rank = Some(number);
        match carrier {
            Carrier::Header(name) => {
                let name = HeaderName::from_bytes(name.as_bytes());
                let name = name.expect("the table's names are names of headers");
                self.headers.insert(name, HeaderValue::from(number));
                Ok(())
            }
            Carrier::Field(field) => {
                let added = with_field(&self.body, field, &number.to_string());
                self.body = added.ok_or(RankRefused::NoObject { field })?;
                Ok(())
            }
            Carrier::Nothing => Err(RankRefused::NoControl {
                engine: match worker.engine {
                    EngineKind::Vllm => "vLLM",
                    EngineKind::Sglang => "SGLang",
                    EngineKind::TensorRtLlm => "TensorRT-LLM",
                    EngineKind::LlamaCpp => "llama.cpp",
                },
                version: worker.version.clone(),
                path: path.split('?').next().unwrap_or_default().to_owned(),
            }),
        }
    }

    /// Tells the engine which conversation it is, in place of what its client may have said. Where the body is no JSON
    /// object the engine will say so.
    fn name_conversation(&mut self, conversation: &ConversationId) {
        let named = conversation_params(conversation);
        if let Some(body) = with_field(&self.body, CONVERSATION_FIELD, &named) {
            self.body = body;
        }
    }

    /// Has the answer report its making, where it can.
    fn ask_for_report(&mut self, field: &'static str) {
        /// Of a request: only what decides whether an answer reports. Everything else is passed over.
        #[derive(Deserialize)]
        struct Wishes<'a> {
            #[serde(borrow)]
            stream: Option<&'a RawValue>,
            #[serde(
                borrow,
                default,
                rename = "return_meta_info",
                deserialize_with = "present"
            )]
            report: Option<&'a RawValue>,
        }
        /// `null` too is an answer to whether it shall report.
        fn present<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<&'de RawValue>, D::Error> {
            <&RawValue>::deserialize(deserializer).map(Some)
        }
        let is = |value: Option<&RawValue>| value.is_some_and(|it| it.get() == "true");
        let Ok(wishes) = serde_json::from_slice::<Wishes<'_>>(&self.body) else {
            return;
        };
        if is(wishes.stream) {
            return;
        }
        if wishes.report.is_some() {
            // Two fields of one name would leave it to the engine which counts.
            if is(wishes.report) {
                self.reported = Reported::ToClient;
            }
        } else if let Some(body) = with_field(&self.body, field, "true") {
            self.body = body;
            self.reported = Reported::ToUs;
        }
    }
}

/// The number by which `worker` is asked for `rank`, none where it needs none to run it there.
fn rank_number(worker: &Worker, rank: DpRank) -> Result<Option<u32>, RankRefused> {
    if !worker.owns(rank) {
        return Err(RankRefused::NotOwned {
            start: worker.start_rank,
            size: worker.dp_size,
        });
    }
    match worker.capability.header_space {
        HeaderSpace::Global => Ok(Some(rank.get())),
        // `owns` has shown that the rank is not below the first.
        HeaderSpace::Local => Ok(Some(rank.get() - worker.start_rank)),
        HeaderSpace::None if worker.dp_size == 1 => Ok(None),
        HeaderSpace::None => Err(RankRefused::NoSpace),
    }
}

/// A JSON object with one more field, its last, so that engines' readers prefer it over one of the same name. Nothing
/// but its end is looked at. None where the body ends like no object.
fn with_field(body: &Bytes, name: &str, value: &str) -> Option<Bytes> {
    let open = body.trim_ascii_end().strip_suffix(b"}")?;
    let empty = open.trim_ascii_end().ends_with(b"{") && open.trim_ascii().len() == 1;
    let mut longer = BytesMut::with_capacity(open.len() + name.len() + value.len() + 5);
    longer.put_slice(open);
    if !empty {
        longer.put_u8(b',');
    }
    longer.put_slice(format!("\"{name}\":{value}}}").as_bytes());
    Some(longer.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_added_as_the_last_of_an_object() {
        let check = |body: &'static str, expected: Option<&str>| {
            let added = with_field(&Bytes::from_static(body.as_bytes()), "id_slot", "1");
            let added = added.map(|it| String::from_utf8(it.to_vec()).unwrap());
            assert_eq!(added.as_deref(), expected, "{body}");
        };
        check("{}", Some(r#"{"id_slot":1}"#));
        check(" { } \n", Some(r#" { "id_slot":1}"#));
        check(r#"{"a":{}}"#, Some(r#"{"a":{},"id_slot":1}"#));
        check(r#"{"a":"}" }"#, Some(r#"{"a":"}" ,"id_slot":1}"#));
        check("[]", None);
        check("", None);
    }
}
