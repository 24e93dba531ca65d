//! What a request says of its conversation. Nothing is parsed here: the caller hands in headers and the few
//! body fields that may hold an id; and what must be compared with earlier requests is left to the caller, who
//! has seen them.
//!
//! Ids are trimmed of white space. `x-request-id` and its like are never read: they change with each turn.

use std::fmt;
use std::str::FromStr;

use domain::{ConversationId, InvalidId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The header by which a client names its conversation to Rankway. A bad value is refused, not skipped.
pub const EXPLICIT_HEADER: &str = "x-rankway-conversation";

/// Headers of agents that name the conversation itself; a sub-agent's id comes before its session's.
const AGENT_HEADERS: [&str; 6] = [
    "x-dynamo-session-id",
    CLAUDE_AGENT,
    CLAUDE_SESSION,
    "thread-id",
    "session-id",
    "x-opencode-session",
];
/// Headers of clients and gateways that name a session.
const SESSION_HEADERS: [&str; 5] = [
    "x-session-id",
    "x-session-affinity",
    "x-multi-turn-session-id",
    "x-smg-routing-key",
    "x-litellm-session-id",
];
/// Headers that name the conversation this one was started from.
const PARENT_HEADERS: [&str; 3] = [
    "x-dynamo-parent-session-id",
    "x-claude-code-parent-agent-id",
    "x-parent-session-id",
];
const CLAUDE_AGENT: &str = "x-claude-code-agent-id";
const CLAUDE_SESSION: &str = "x-claude-code-session-id";

/// The response that a request goes on with, whose id its answer carried.
const PREVIOUS_RESPONSE: &str = "previous_response_id";
const CORRELATION_HEADER: &str = "x-correlation-id";

/// A kind of place in a request where its conversation may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// [`EXPLICIT_HEADER`].
    Explicit,
    /// A field of the body: see [`BodyIds`].
    Body,
    /// A header of a known agent.
    Agent,
    /// A session header of clients and gateways.
    Session,
    /// A field of the Responses API: its conversation, or the response it goes on with.
    Responses,
    /// `x-correlation-id`, which some set for a conversation and others for each request.
    CorrelationId,
    /// `prompt_cache_key`, which many conversations may share.
    PromptCacheKey,
    /// The prompt itself, which goes on where a recent one ended.
    Lineage,
}

impl SourceKind {
    /// The order in which they are asked unless it is configured: all of them.
    pub const DEFAULT_ORDER: [Self; 8] = [
        Self::Explicit,
        Self::Body,
        Self::Agent,
        Self::Session,
        Self::Responses,
        Self::CorrelationId,
        Self::PromptCacheKey,
        Self::Lineage,
    ];

    /// Its name in settings and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Explicit => "explicit",
            Self::Body => "body",
            Self::Agent => "agent",
            Self::Session => "session",
            Self::Responses => "responses",
            Self::CorrelationId => "correlation_id",
            Self::PromptCacheKey => "prompt_cache_key",
            Self::Lineage => "lineage",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no kind of source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} tells no conversation: choose among {}", names().join(", "))]
pub struct UnknownSource {
    name: String,
}

impl FromStr for SourceKind {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        let kind = Self::DEFAULT_ORDER.into_iter().find(|it| it.name() == text);
        kind.ok_or_else(|| UnknownSource {
            name: text.to_owned(),
        })
    }
}

fn names() -> [&'static str; 8] {
    SourceKind::DEFAULT_ORDER.map(SourceKind::name)
}

/// Where exactly an id stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The kind of place.
    pub kind: SourceKind,
    /// The header, or the path of the body field.
    pub name: &'static str,
}

/// The body fields that may name a conversation, where they are there and hold a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyIds<'a> {
    /// `conversation_params.conversation_id` (TensorRT-LLM).
    pub conversation_params_conversation_id: Option<&'a str>,
    /// `session_id` (vLLM, SGLang).
    pub session_id: Option<&'a str>,
    /// `nvext.agent_context.session_id` (Dynamo).
    pub nvext_agent_context_session_id: Option<&'a str>,
    /// `nvext.session_control.session_id` (Dynamo, earlier).
    pub nvext_session_control_session_id: Option<&'a str>,
    /// `session_params.id` (SGLang).
    pub session_params_id: Option<&'a str>,
    /// `session_params.session_id`.
    pub session_params_session_id: Option<&'a str>,
    /// `conversation`, or its `id` (Responses API).
    pub conversation: Option<&'a str>,
    /// `previous_response_id` (Responses API).
    pub previous_response_id: Option<&'a str>,
    /// `prompt_cache_key` (OpenAI).
    pub prompt_cache_key: Option<&'a str>,
}

impl<'a> BodyIds<'a> {
    fn in_order(&self) -> [(&'static str, Option<&'a str>); 6] {
        [
            (
                "conversation_params.conversation_id",
                self.conversation_params_conversation_id,
            ),
            ("session_id", self.session_id),
            (
                "nvext.agent_context.session_id",
                self.nvext_agent_context_session_id,
            ),
            (
                "nvext.session_control.session_id",
                self.nvext_session_control_session_id,
            ),
            ("session_params.id", self.session_params_id),
            ("session_params.session_id", self.session_params_session_id),
        ]
    }
}

/// A request's conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conversation {
    /// Its id, as the client wrote it; where that is longer than an id may be, the 32 hexadecimal digits of
    /// its xxh3-128 with seed 0.
    pub id: ConversationId,
    /// Where it stood.
    pub source: Source,
}

impl Conversation {
    /// Whether its later turns carry the same id: a response is followed by the next response's, so that each
    /// is bound under its own.
    pub fn keeps_its_id(&self) -> bool {
        self.source.name != PREVIOUS_RESPONSE
    }
}

/// Something by which a request's conversation may be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// This is it.
    Named(Conversation),
    /// This is it if a later request with it extends an earlier one's prompt: see [`crate::Correlations`].
    Correlated(Conversation),
    /// Requests with the same number would rather be near each other, and need not belong together.
    Bucket(u64),
    /// It is to be found by where earlier prompts ended: see [`crate::Lineage`].
    Lineage,
}

/// What a request says of its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What its conversation may be known by, the first that holds first: nothing comes after an id that
    /// holds by itself.
    pub claims: Vec<Claim>,
    /// Places before it that hold something which is no id: to be counted, not reported.
    pub skipped: Vec<Source>,
}

/// Why a text is no conversation id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConversation {
    /// Its bytes are not UTF-8.
    #[error("{name} is not UTF-8 text")]
    NotText {
        /// Where it stood.
        name: &'static str,
    },
    /// It is empty, too long, or holds a control character.
    #[error("{name} is not a conversation id")]
    Id {
        /// Where it stood.
        name: &'static str,
        /// What is wrong with it.
        #[source]
        source: InvalidId,
    },
}

/// Finds what a request's conversation may be known by, in `order`.
///
/// `headers` looks a header up by its lower-case name. Fails only on a bad [`EXPLICIT_HEADER`] that is
/// reached; elsewhere a bad id is skipped, and one that is merely too long is hashed.
pub fn find_conversation<'a>(
    order: &[SourceKind],
    headers: &dyn Fn(&str) -> Option<&'a [u8]>,
    body: &BodyIds<'a>,
) -> Result<Found, InvalidConversation> {
    let mut found = Found::default();
    for kind in order.iter().copied() {
        let claim = match kind {
            SourceKind::Explicit => {
                let explicit = headers(EXPLICIT_HEADER).map(explicit).transpose()?;
                explicit.map(Claim::Named)
            }
            SourceKind::Lineage => Some(Claim::Lineage),
            SourceKind::CorrelationId => {
                let id = found.first_valid(kind, candidates(kind, headers, body));
                id.map(Claim::Correlated)
            }
            SourceKind::PromptCacheKey => {
                let id = found.first_valid(kind, candidates(kind, headers, body));
                id.map(|it| Claim::Bucket(xxh3_64(it.id.as_str().as_bytes())))
            }
            SourceKind::Body | SourceKind::Agent | SourceKind::Session | SourceKind::Responses => {
                let id = found.first_valid(kind, candidates(kind, headers, body));
                id.map(Claim::Named)
            }
        };
        let holds = matches!(claim, Some(Claim::Named(_)));
        found.claims.extend(claim);
        if holds {
            break;
        }
    }
    Ok(found)
}

/// The places of a kind, and what stands there.
fn candidates<'a>(
    kind: SourceKind,
    headers: &dyn Fn(&str) -> Option<&'a [u8]>,
    body: &BodyIds<'a>,
) -> Vec<(&'static str, Option<&'a [u8]>)> {
    let text = |name, text: Option<&'a str>| (name, text.map(str::as_bytes));
    let header = |name| (name, headers(name));
    match kind {
        SourceKind::Explicit => vec![header(EXPLICIT_HEADER)],
        SourceKind::Body => body.in_order().map(|(name, id)| text(name, id)).to_vec(),
        SourceKind::Agent => AGENT_HEADERS.map(header).to_vec(),
        SourceKind::Session => SESSION_HEADERS.map(header).to_vec(),
        SourceKind::Responses => vec![
            text("conversation", body.conversation),
            text(PREVIOUS_RESPONSE, body.previous_response_id),
        ],
        SourceKind::CorrelationId => vec![header(CORRELATION_HEADER)],
        SourceKind::PromptCacheKey => vec![text("prompt_cache_key", body.prompt_cache_key)],
        SourceKind::Lineage => Vec::new(),
    }
}

impl Found {
    /// The first valid id of these; what stands before it and is none is skipped.
    fn first_valid(
        &mut self,
        kind: SourceKind,
        candidates: Vec<(&'static str, Option<&[u8]>)>,
    ) -> Option<Conversation> {
        for (name, value) in candidates {
            let Some(value) = value else { continue };
            let source = Source { kind, name };
            match lenient(name, value) {
                Ok(id) => return Some(Conversation { id, source }),
                // What is wrong with it helps nobody: clients set these for others.
                Err(_) => self.skipped.push(source),
            }
        }
        None
    }
}

/// The conversation that this one was started from, if the request says: a hint for its first placement and
/// nothing else. A Claude Code sub-agent without a parent agent was started by its session.
pub fn parent_hint<'a>(headers: &dyn Fn(&str) -> Option<&'a [u8]>) -> Option<ConversationId> {
    let read = |name: &'static str| lenient(name, headers(name)?).ok();
    PARENT_HEADERS
        .into_iter()
        .find_map(read)
        .or_else(|| read(CLAUDE_AGENT).and_then(|_| read(CLAUDE_SESSION)))
}

/// The conversation that a turn belongs to which goes on with a response of this id; none where that is no id.
pub fn after_response(id: &str) -> Option<ConversationId> {
    lenient(PREVIOUS_RESPONSE, id.as_bytes()).ok()
}

fn explicit(value: &[u8]) -> Result<Conversation, InvalidConversation> {
    let name = EXPLICIT_HEADER;
    let id = ConversationId::new(text(name, value)?)
        .map_err(|source| InvalidConversation::Id { name, source })?;
    let source = Source {
        kind: SourceKind::Explicit,
        name,
    };
    Ok(Conversation { id, source })
}

fn lenient(name: &'static str, value: &[u8]) -> Result<ConversationId, InvalidConversation> {
    let text = text(name, value)?;
    let id = match ConversationId::new(text) {
        Err(InvalidId::TooLong { .. }) if !text.contains(char::is_control) => {
            ConversationId::new(&format!("{:032x}", xxh3_128(text.as_bytes())))
        }
        id => id,
    };
    id.map_err(|source| InvalidConversation::Id { name, source })
}

fn text<'a>(name: &'static str, value: &'a [u8]) -> Result<&'a str, InvalidConversation> {
    std::str::from_utf8(value)
        .map(str::trim)
        .map_err(|_| InvalidConversation::NotText { name })
}

#[cfg(test)]
mod tests;
