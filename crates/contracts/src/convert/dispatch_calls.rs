//! The calls of `dispatch.proto`, but for the body, which passes as it is.

use domain::{ConversationId, DpRank, Tokens, Usage, WorkerId};

use super::{Wire, invalid, read_enum, wire, wire_enum};
use crate::DecodeError;
use crate::rpc::{CallEnd, CallHead, HttpHead, RankEvidence};

wire_enum!(RankEvidence, RankEvidence, { Body => Body, Header => Header });

/// A call as it is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) head: CallHead,
    /// The length of its body.
    pub(crate) body_bytes: u64,
}

fn headers_to_wire(headers: &[(String, String)]) -> Vec<wire::HttpHeader> {
    let header = |(name, value): &(String, String)| wire::HttpHeader {
        name: name.clone(),
        value: value.clone(),
    };
    headers.iter().map(header).collect()
}

fn headers_from_wire(headers: Vec<wire::HttpHeader>) -> Vec<(String, String)> {
    let header = |it: wire::HttpHeader| (it.name, it.value);
    headers.into_iter().map(header).collect()
}

impl Wire for Announced {
    const WHAT: &'static str = "call";
    type Message = wire::CallHead;

    fn to_wire(&self) -> wire::CallHead {
        let CallHead {
            worker,
            dp_rank,
            conversation,
            method,
            path,
            headers,
            usage_injected,
        } = &self.head;
        wire::CallHead {
            worker: worker.to_string(),
            dp_rank: dp_rank.map(DpRank::get),
            conversation: conversation.as_ref().map(ConversationId::to_string),
            method: method.clone(),
            path: path.clone(),
            headers: headers_to_wire(headers),
            usage_injected: *usage_injected,
            body_bytes: self.body_bytes,
        }
    }

    fn from_wire(message: wire::CallHead) -> Result<Self, DecodeError> {
        let worker = WorkerId::new(&message.worker);
        let conversation = message.conversation.as_deref().map(ConversationId::new);
        let conversation = conversation.transpose();
        let head = CallHead {
            worker: worker.map_err(|why| invalid::<Self>("worker", why))?,
            dp_rank: message.dp_rank.map(DpRank::new),
            conversation: conversation.map_err(|why| invalid::<Self>("conversation", why))?,
            method: message.method,
            path: message.path,
            headers: headers_from_wire(message.headers),
            usage_injected: message.usage_injected,
        };
        Ok(Self {
            head,
            body_bytes: message.body_bytes,
        })
    }
}

impl Wire for HttpHead {
    const WHAT: &'static str = "http head";
    type Message = wire::HttpHead;

    fn to_wire(&self) -> wire::HttpHead {
        wire::HttpHead {
            status: self.status.into(),
            headers: headers_to_wire(&self.headers),
        }
    }

    fn from_wire(message: wire::HttpHead) -> Result<Self, DecodeError> {
        let status = u16::try_from(message.status);
        let status = status.ok().filter(|it| (100..1000).contains(it));
        let no_status = || {
            let why = format!("is {}, which has not three digits", message.status);
            invalid::<Self>("status", why)
        };
        Ok(Self {
            status: status.ok_or_else(no_status)?,
            headers: headers_from_wire(message.headers),
        })
    }
}

impl Wire for CallEnd {
    const WHAT: &'static str = "end of an answer";
    type Message = wire::DownEnd;

    fn to_wire(&self) -> wire::DownEnd {
        let usage = |it: Usage| wire::Usage {
            prompt: it.prompt.get(),
            completion: it.completion.get(),
            cached: it.cached.map(Tokens::get),
        };
        let observed = |(dp_rank, evidence): (DpRank, RankEvidence)| wire::ObservedRank {
            dp_rank: dp_rank.get(),
            evidence: wire::RankEvidence::from(evidence).into(),
        };
        wire::DownEnd {
            usage: self.usage.map(usage),
            observed_rank: self.observed_rank.map(observed),
        }
    }

    fn from_wire(message: wire::DownEnd) -> Result<Self, DecodeError> {
        let usage = |it: wire::Usage| Usage {
            prompt: Tokens::new(it.prompt),
            completion: Tokens::new(it.completion),
            cached: it.cached.map(Tokens::new),
        };
        let observed = |it: wire::ObservedRank| {
            let evidence = read_enum::<Self, wire::RankEvidence, _>("evidence", it.evidence)?;
            Ok((DpRank::new(it.dp_rank), evidence))
        };
        let observed_rank = message.observed_rank.map(observed);
        Ok(Self {
            usage: message.usage.map(usage),
            observed_rank: observed_rank.transpose()?,
        })
    }
}
