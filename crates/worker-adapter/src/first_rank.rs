//! Whether a TensorRT-LLM that keeps conversations keeps the rank that a first turn names, where it does not say.
//!
//! Its answers do not name the rank that ran, and whoever reads its events takes them from others. But a prompt is
//! cached only where it was computed. So a conversation of our own names a rank with its first turn and none with its
//! second, which has the same prompt: if that is found in the cache, it ran there.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use contracts::rpc::CallHead;
use domain::{ConversationId, DpRank, Endpoint, FirstRank, Worker};
use engine_wire::trtllm::Conversations;
use engine_wire::{UsageReader, capability};
use http::Method;
use http::header::CONTENT_TYPE;
use tokio::time::timeout;

use crate::address::EngineUrl;
use crate::client::EngineClient;
use crate::request::outgoing;

/// How long all of it may take: with it and the renewal before, a registration of 15 s does not run out.
const PATIENCE: Duration = Duration::from_secs(5);
/// Conversations are tried until an engine that places second turns by chance would have passed as rarely as once in so
/// many times: 10 with two ranks, 4 with eight.
const CHANCE: u64 = 1000;
/// The most words of a prompt: no engine has blocks of more than half as many tokens.
const MOST_WORDS: u32 = 8192;

/// What a worker may be asked for once `first_rank` is known of it.
pub(crate) fn learn(worker: &mut Worker, first_rank: FirstRank) {
    let space = worker.capability.header_space;
    let all = capability(worker.engine, &worker.version, worker.dp_size, space);
    worker.capability = Conversations::SenderOnce(first_rank).limit(worker.dp_size, all);
}

/// Tries it, with two turns of two blocks and one token of answer for each conversation that [`CHANCE`] asks for, and
/// three more. What is found to be lost is tried a second time: a rank that happens to be full is left for one turn.
pub(crate) async fn find_out(client: &EngineClient, url: &EngineUrl, worker: &Worker) -> FirstRank {
    let mut worker = worker.clone();
    // Asked for as of an engine that keeps it.
    learn(&mut worker, FirstRank::ProvedKept);
    let trial = Trial {
        client,
        url,
        worker,
    };
    let tried = async {
        match trial.run().await? {
            FirstRank::ProvedLost => trial.run().await,
            outcome => Ok(outcome),
        }
    };
    match timeout(PATIENCE, tried).await {
        Ok(Ok(outcome) | Err(Unclear(outcome))) => outcome,
        Err(_) => FirstRank::NoAnswer,
    }
}

/// Nothing was shown.
struct Unclear(FirstRank);

struct Trial<'a> {
    client: &'a EngineClient,
    url: &'a EngineUrl,
    worker: Worker,
}

impl Trial<'_> {
    async fn run(&self) -> Result<FirstRank, Unclear> {
        self.check_caches().await?;
        let (mut chance, ranks) = (1, u64::from(self.worker.dp_size));
        while chance < CHANCE {
            chance *= ranks;
            let id = draw();
            let conversation = ConversationId::new(&format!("rankway-{id:016x}"));
            let conversation = conversation.expect("a short word is an id");
            let prompt = self.prompt(id);
            let rank = self.rank(draw());
            self.is_cached(Some(&conversation), Some(rank), &prompt)
                .await?;
            if !self.is_cached(Some(&conversation), None, &prompt).await? {
                return Ok(FirstRank::ProvedLost);
            }
        }
        Ok(FirstRank::ProvedKept)
    }

    /// Whether answers show where they ran: a prompt is found at the rank that has computed it, and at no other.
    async fn check_caches(&self) -> Result<(), Unclear> {
        let first = draw();
        let prompt = self.prompt(first);
        let (here, elsewhere) = (self.rank(first), self.rank(first.wrapping_add(1)));
        self.is_cached(None, Some(here), &prompt).await?;
        if !self.is_cached(None, Some(here), &prompt).await? {
            return Err(Unclear(FirstRank::NoCachedTokens));
        }
        match self.is_cached(None, Some(elsewhere), &prompt).await? {
            true => Err(Unclear(FirstRank::SharedCache)),
            false => Ok(()),
        }
    }

    /// Sends one turn, as a router's are sent: whether its first block was cached.
    async fn is_cached(
        &self,
        conversation: Option<&ConversationId>,
        rank: Option<DpRank>,
        prompt: &str,
    ) -> Result<bool, Unclear> {
        let no_answer = || Unclear(FirstRank::NoAnswer);
        let model = self.worker.model.as_str();
        let body = serde_json::json!({"model": model, "prompt": prompt, "max_tokens": 1});
        let head = CallHead {
            worker: self.worker.id.clone(),
            dp_rank: rank,
            conversation: conversation.cloned(),
            method: Method::POST.to_string(),
            path: Endpoint::Completions.path().to_owned(),
            headers: vec![(CONTENT_TYPE.to_string(), "application/json".to_owned())],
            usage_injected: false,
        };
        let outgoing = outgoing(&self.worker, &head, body.to_string().into());
        let outgoing = outgoing.map_err(|_| no_answer())?;
        let (headers, body) = (outgoing.headers, outgoing.body);
        let sent = self
            .client
            .exchange(self.url, Method::POST, &head.path, headers, body)
            .await
            .map_err(|_| no_answer())?;
        if sent.status != 200 {
            return Err(no_answer());
        }
        let mut usage = UsageReader::default();
        usage.read(&sent.body);
        let cached = usage.usage().and_then(|it| it.cached);
        Ok(cached.is_some_and(|it| u64::from(self.worker.block_size.get()) <= it.get()))
    }

    /// Two blocks that nobody else has: what makes them so stands first, because engines also reuse parts of a block.
    fn prompt(&self, id: u64) -> String {
        let words = self.worker.block_size.get().saturating_mul(2);
        let words = ["one", "two", "three", "four", "five"]
            .iter()
            .cycle()
            .take(words.min(MOST_WORDS) as usize);
        words.fold(format!("{id:016x}"), |text, word| format!("{text} {word}"))
    }

    fn rank(&self, number: u64) -> DpRank {
        let local = number % u64::from(self.worker.dp_size);
        let local = u32::try_from(local).expect("it is below a number of ranks");
        DpRank::new(self.worker.start_rank + local)
    }
}

/// A number that no engine's own order of ranks follows.
fn draw() -> u64 {
    RandomState::new().hash_one(())
}
