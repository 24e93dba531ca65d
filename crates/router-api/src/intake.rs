//! From a request's bytes to what a decision is asked for.

use std::sync::Arc;

use affinity::{Claim, ConversationKey, find_conversation, parent_hint};
use axum::http::HeaderMap;
use bytes::Bytes;
use domain::{
    BlockSize, ConversationId, DpRank, Endpoint, HashSeed, ModelName, Namespace, SequenceHash,
    Tokens, WorkerId, prefix_hashes,
};
use engine_wire::{CLIENT_RANK_HEADERS, takes_salt};
use routing::admission::Priority;
use routing::{Lead, Pin};
use service_kit::error_chain;

use crate::admission::asked;
use crate::error::{ApiError, excerpt};
use crate::openai::{Fields, Prompt, without_salt};
use crate::replica::Replica;
use crate::tenant::Tenant;

/// The client's choice of a worker.
const WORKER_HEADER: &str = "x-rankway-worker";
/// The client's choice of a rank.
const RANK_HEADER: &str = "x-rankway-dp-rank";
/// Headers that are ours and end here.
const OWN_PREFIX: &str = "x-rankway-";

/// What is known of a request before anybody is asked.
pub(crate) struct Intake {
    pub(crate) model: ModelName,
    pub(crate) endpoint: Endpoint,
    pub(crate) tenant: Arc<Tenant>,
    /// What engine and index keep its blocks under.
    pub(crate) salt: Option<String>,
    /// What its conversation may be known by, until that is settled: see [`Replica::identify`].
    pub(crate) claims: Vec<Claim>,
    pub(crate) conversation: Option<ConversationKey>,
    /// Whether later turns carry the conversation's id too.
    pub(crate) keeps_its_id: bool,
    /// Whether the next turn may be known by nothing but the id of the answer.
    pub(crate) chains: bool,
    /// The conversation that this one was started from.
    pub(crate) parent: Option<ConversationKey>,
    /// Requests of one bucket would rather be near each other.
    pub(crate) bucket: Option<u64>,
    /// Where the nameless request ran that this one goes on with.
    pub(crate) lead: Option<Lead>,
    pub(crate) pin: Option<Pin>,
    /// How urgent it is, as far as its tenant may say so.
    pub(crate) priority: Priority,
    pub(crate) streams: bool,
}

/// A request's length, and its blocks where its tokens are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) isl: Tokens,
    /// Empty where nobody could say the tokens.
    pub(crate) hashes: Vec<(BlockSize, Vec<SequenceHash>)>,
}

impl Blocks {
    /// How many there are, of every size.
    pub(crate) fn count(&self) -> usize {
        self.hashes.iter().map(|(_, hashes)| hashes.len()).sum()
    }
}

impl Intake {
    /// Reads what the request says of itself.
    pub(crate) fn read(
        replica: &Replica,
        (tenant, headers): (&Arc<Tenant>, &HeaderMap),
        endpoint: Endpoint,
        fields: &Fields<'_>,
    ) -> Result<Self, ApiError> {
        let model = model(replica, fields.model()?)?;
        let parent = parent_hint(&|name| header(headers, name));
        let claims = claims(replica, headers, fields)?;
        let is_named = claims
            .iter()
            .any(|it| matches!(it, Claim::Named(it) if it.keeps_its_id()));
        Ok(Self {
            // Whose an answer is has to be known of each, where there are several tenants.
            chains: endpoint == Endpoint::Responses && (!is_named || tenant.is_named()),
            claims,
            conversation: None,
            keeps_its_id: true,
            parent: parent.map(|id| key(tenant, &model, id)),
            bucket: None,
            lead: None,
            pin: pin(replica, headers, fields, &model)?,
            priority: asked(headers, fields, &replica.metrics.queue.skipped)?
                .min(tenant.highest_priority),
            salt: replica.salt(tenant, fields.cache_salt()?.as_deref()),
            tenant: tenant.clone(),
            streams: fields.streams(),
            endpoint,
            model,
        })
    }

    /// What a conversation of this id is kept under.
    pub(crate) fn key(&self, conversation: ConversationId) -> ConversationKey {
        key(&self.tenant, &self.model, conversation)
    }

    /// The salt that its engine has to be told, where that is not what its client says.
    pub(crate) fn made_salt(&self) -> Option<&str> {
        self.salt.as_deref().filter(|_| self.tenant.is_named())
    }

    /// `body`, which has [`Self::made_salt`] in it, as this worker gets it: without one where its engine takes none.
    pub(crate) fn body_for(&self, replica: &Replica, worker: &WorkerId, body: &Bytes) -> Bytes {
        if self.made_salt().is_none() {
            return body.clone();
        }
        let router = replica.mind.lock();
        let worker = router.worker(worker);
        let takes = worker.is_none_or(|it| takes_salt(it, self.endpoint));
        drop(router);
        match takes {
            true => body.clone(),
            false => without_salt(body),
        }
    }

    /// The conversation's id, where an engine will see the same one in its later turns.
    pub(crate) fn lasting_id(&self) -> Option<ConversationId> {
        let key = self.conversation.as_ref().filter(|_| self.keeps_its_id);
        key.map(|it| it.conversation.clone())
    }

    /// Which index knows of its blocks of this size.
    pub(crate) fn namespace(&self, block_size: BlockSize) -> Namespace {
        Namespace {
            model: self.model.clone(),
            lora: None,
            salt: self.salt.as_deref().map(Into::into),
            block_size,
        }
    }

    /// The blocks of `tokens` in every block size that the model's workers have.
    pub(crate) fn blocks_of(&self, replica: &Replica, tokens: &[u32]) -> Blocks {
        let seed = HashSeed::of(None, self.salt.as_deref());
        let sizes = replica.mind.lock().block_sizes(&self.model);
        let hashes = sizes
            .into_iter()
            .map(|size| (size, prefix_hashes(tokens, size, seed)));
        Blocks {
            isl: Tokens::new(tokens.len() as u64),
            hashes: hashes.collect(),
        }
    }

    /// The blocks of a request whose asker has hashed it already, which is possible in one block size only.
    pub(crate) fn blocks_hashed(
        &self,
        replica: &Replica,
        hashes: Vec<SequenceHash>,
    ) -> Result<Blocks, ApiError> {
        let sizes = replica.mind.lock().block_sizes(&self.model);
        let mut sizes = sizes.into_iter();
        let (Some(size), None) = (sizes.next(), sizes.next()) else {
            return Err(ApiError::Invalid {
                message: "workers of this model have different block sizes: send token_ids"
                    .to_owned(),
                param: Some("block_hashes"),
            });
        };
        let blocks = u32::try_from(hashes.len()).unwrap_or(u32::MAX);
        Ok(Blocks {
            isl: size.tokens(blocks),
            hashes: vec![(size, hashes)],
        })
    }
}

/// The headers that go on to the engine.
pub(crate) fn passing(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| !name.as_str().starts_with(OWN_PREFIX))
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), value.into_owned())
        })
        .collect()
}

/// Whether the tokens are known, or whom to ask.
pub(crate) enum TokenSource {
    Known(Blocks),
    /// The engine's tokenizer.
    Tokenizer,
    Nobody,
}

impl TokenSource {
    pub(crate) fn of(replica: &Replica, intake: &Intake, prompt: Prompt) -> Result<Self, ApiError> {
        Ok(match prompt {
            Prompt::Tokens(tokens) => Self::Known(intake.blocks_of(replica, &tokens)),
            Prompt::Hashes(_) if intake.tenant.is_named() => {
                return Err(ApiError::Invalid {
                    message: "where API keys name tenants, blocks are hashed under a tenant's salt: send token_ids"
                        .to_owned(),
                    param: Some("block_hashes"),
                });
            }
            Prompt::Hashes(hashes) => Self::Known(intake.blocks_hashed(replica, hashes)?),
            Prompt::Text => Self::Tokenizer,
            Prompt::Unread => Self::Nobody,
        })
    }
}

fn key(tenant: &Tenant, model: &ModelName, conversation: ConversationId) -> ConversationKey {
    ConversationKey {
        tenant: tenant.id.clone(),
        model: model.clone(),
        conversation,
    }
}

fn model(replica: &Replica, name: &str) -> Result<ModelName, ApiError> {
    let models = replica.mind.lock().models();
    if models.is_empty() {
        // Right after a start: the model may exist, and clients give up on one that does not.
        return Err(ApiError::NoTarget {
            why: "no worker has been found yet".to_owned(),
        });
    }
    let found = models.iter().find(|it| it.as_str() == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = models.iter().map(ModelName::as_str).collect();
        ApiError::UnknownModel {
            model: excerpt(name).into_owned(),
            known: names.join(", "),
        }
    })
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    headers.get(name).map(|value| value.as_bytes())
}

fn claims(
    replica: &Replica,
    headers: &HeaderMap,
    fields: &Fields<'_>,
) -> Result<Vec<Claim>, ApiError> {
    let texts = fields.body_texts();
    let order = &replica.config.conversation_order;
    let found = find_conversation(order, &|name| header(headers, name), &texts.ids())
        .map_err(|error| ApiError::invalid(error_chain(&error)))?;
    replica
        .metrics
        .skipped_ids
        .inc_by(found.skipped.len() as u64);
    Ok(found.claims)
}

/// The target that the client insists on, if it may.
fn pin(
    replica: &Replica,
    headers: &HeaderMap,
    fields: &Fields<'_>,
    model: &ModelName,
) -> Result<Option<Pin>, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let worker = text(WORKER_HEADER);
    let rank = [RANK_HEADER].into_iter().chain(CLIENT_RANK_HEADERS);
    let rank = rank.into_iter().find_map(text);
    let rank = rank.or_else(|| fields.asked_rank());
    if worker.is_none() && rank.is_none() && !fields.names_a_rank() {
        return Ok(None);
    }
    if !replica.config.allow_client_target {
        replica.metrics.refused_targets.inc();
        return Ok(None);
    }
    if worker.is_none() && rank.is_none() {
        return Ok(None);
    }
    let workers = replica.mind.serving(model, replica.clock.now());
    let ids: Vec<&str> = workers.iter().map(|it| it.id.as_str()).collect();
    let worker = match (worker, &workers[..]) {
        (Some(name), _) => WorkerId::new(name).ok(),
        (None, [only]) => Some(only.id.clone()),
        (None, _) => None,
    };
    let worker = worker.ok_or_else(|| {
        let message = format!(
            "name a worker in {WORKER_HEADER}: one of {}",
            ids.join(", ")
        );
        ApiError::invalid(message)
    })?;
    let dp_rank = match rank.map(str::parse).transpose() {
        Ok(rank) => rank.map(DpRank::new),
        Err(_) => {
            return Err(ApiError::invalid(format!(
                "{:?} is not a rank",
                excerpt(rank.unwrap_or(""))
            )));
        }
    };
    Ok(Some(Pin { worker, dp_rank }))
}
