//! Which conversation a request belongs to, by the ids it carries. Nothing is parsed here: the caller hands
//! in headers and the few body fields that may hold an id.
//!
//! Ids are trimmed of white space. `x-request-id` and its like are never read: they change with each turn.

use domain::{ConversationId, InvalidId};
use xxhash_rust::xxh3::xxh3_128;

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
const GENERIC_HEADERS: [&str; 5] = [
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

/// A kind of place in a request where a conversation id may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceKind {
    /// [`EXPLICIT_HEADER`].
    Explicit,
    /// A field of the body: see [`BodyIds`].
    Body,
    /// A header of a known agent.
    Agent,
    /// A session header of clients and gateways.
    Generic,
}

impl SourceKind {
    /// The order in which they are asked unless it is configured.
    pub const DEFAULT_ORDER: [Self; 4] = [Self::Explicit, Self::Body, Self::Agent, Self::Generic];
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

/// What a request says of its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The first valid id, if there is one.
    pub conversation: Option<Conversation>,
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

/// Finds the conversation a request belongs to: the first valid id in `order`.
///
/// `headers` looks a header up by its lower-case name. Fails only on a bad [`EXPLICIT_HEADER`] that is
/// reached; elsewhere a bad id is skipped, and one that is merely too long is hashed.
pub fn find_conversation<'a>(
    order: &[SourceKind],
    headers: &dyn Fn(&str) -> Option<&'a [u8]>,
    body: &BodyIds<'a>,
) -> Result<Found, InvalidConversation> {
    let mut found = Found::default();
    for kind in order {
        let candidates: Vec<(&'static str, Option<&[u8]>)> = match kind {
            SourceKind::Explicit => {
                if let Some(value) = headers(EXPLICIT_HEADER) {
                    found.conversation = Some(explicit(value)?);
                    return Ok(found);
                }
                continue;
            }
            SourceKind::Body => body
                .in_order()
                .map(|(name, id)| (name, id.map(str::as_bytes)))
                .to_vec(),
            SourceKind::Agent => AGENT_HEADERS.map(|name| (name, headers(name))).to_vec(),
            SourceKind::Generic => GENERIC_HEADERS.map(|name| (name, headers(name))).to_vec(),
        };
        for (name, value) in candidates {
            let Some(value) = value else { continue };
            let source = Source { kind: *kind, name };
            match lenient(name, value) {
                Ok(id) => {
                    found.conversation = Some(Conversation { id, source });
                    return Ok(found);
                }
                // What is wrong with it helps nobody: clients set these for others.
                Err(_) => found.skipped.push(source),
            }
        }
    }
    Ok(found)
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
