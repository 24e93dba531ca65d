//! Sending a request to an engine and streaming its answer.

use async_trait::async_trait;
use bytes::Bytes;
use domain::{ConversationId, DpRank, Usage, WorkerId};
use futures::stream::BoxStream;

/// The worker adapter: speaks each engine's dialect.
#[async_trait]
pub trait Dispatch: Send + Sync {
    /// Sends one request. Resolves when the engine's response head is there.
    ///
    /// Dropping the future or the stream cancels the request at the engine at once, also before its first
    /// byte. Chunks are at most 64 KiB and are passed on as they come, never gathered. The stream ends with
    /// exactly one [`Down::End`] or one error.
    async fn call(
        &self,
        head: CallHead,
        body: Bytes,
    ) -> Result<(HttpHead, CallStream), DispatchError>;
}

/// The rest of an answer.
pub type CallStream = BoxStream<'static, Result<Down, DispatchError>>;

/// Where a request goes, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallHead {
    /// The worker.
    pub worker: WorkerId,
    /// The rank to ask for, in the engine's global numbering; none leaves it to the engine. Where the worker's
    /// capability says that the path's endpoint takes none, asking for one is [`DispatchError::Rank`].
    pub dp_rank: Option<DpRank>,
    /// The conversation, by an id that its later turns will have too; only an engine that keeps conversations on
    /// ranks by itself is told.
    pub conversation: Option<ConversationId>,
    /// HTTP method, such as `POST`.
    pub method: String,
    /// Path and query, such as `/v1/chat/completions`.
    pub path: String,
    /// Headers to pass on. Hop-by-hop, length and rank headers are the adapter's business.
    pub headers: Vec<(String, String)>,
    /// Whether the router added `stream_options.include_usage`: the adapter then drops the usage-only
    /// frame that the client did not ask for.
    pub usage_injected: bool,
}

/// The head of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHead {
    /// Status code.
    pub status: u16,
    /// End-to-end headers.
    pub headers: Vec<(String, String)>,
}

/// What comes down after the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Down {
    /// Body bytes, at most 64 KiB.
    Chunk(Bytes),
    /// The body is complete.
    End(CallEnd),
}

/// What an answer said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallEnd {
    /// Token counts, where the engine reports them.
    pub usage: Option<Usage>,
    /// The rank that ran, where the answer says.
    pub observed_rank: Option<(DpRank, RankEvidence)>,
}

/// How an answer shows its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankEvidence {
    /// A field of the answer.
    Body,
    /// A header of the answer.
    Header,
}

/// Why a request has no answer, or no whole one.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// No such worker is registered here.
    #[error("worker {worker} is not registered")]
    UnknownWorker {
        /// Who was asked for.
        worker: WorkerId,
    },
    /// The worker has no such rank, cannot be told one, or refuses it. Whoever chose the rank was wrong, not who
    /// sent the request.
    #[error("worker {worker} cannot serve rank {dp_rank}: {why}")]
    Rank {
        /// The worker.
        worker: WorkerId,
        /// The rank asked for.
        dp_rank: DpRank,
        /// What is wrong.
        why: String,
    },
    /// No adapter of the worker was reached, or the one that was is lost. Of the engine and its cache nothing is
    /// said.
    #[error("reach an adapter of worker {worker}")]
    Adapter {
        /// The worker.
        worker: WorkerId,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine could not be reached: nothing was sent, or nothing came back.
    #[error("connect to worker {worker} at {url}")]
    Connect {
        /// The worker.
        worker: WorkerId,
        /// Its URL.
        url: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer broke off.
    #[error("the answer of worker {worker} broke off")]
    Broken {
        /// The worker.
        worker: WorkerId,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DispatchError {
    /// Whether another target may serve the same request, as long as no byte has reached the client.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::UnknownWorker { .. }
            | Self::Rank { .. }
            | Self::Adapter { .. }
            | Self::Connect { .. }
            | Self::Broken { .. } => true,
        }
    }
}
