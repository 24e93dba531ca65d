//! Outcomes of `records.proto`.

use std::time::Duration;

use accounting::{Carrier, Levels, RankKnowledge, Waterfall};
use domain::{DpRank, InstanceId, ModelName, Timestamp, Tokens, Usage};

use super::decision::{id, nanoseconds};
use super::{Wire, invalid, wire};
use crate::{DecodeError, OutcomeRecord};

impl Wire for OutcomeRecord {
    const WHAT: &'static str = "outcome";
    type Message = wire::Outcome;

    fn to_wire(&self) -> wire::Outcome {
        let Self {
            id,
            router,
            at,
            model,
            status,
            ttft,
            duration,
            observed_rank,
            usage,
            waterfall,
        } = self;
        wire::Outcome {
            id: id.to_string(),
            router: router.to_string(),
            at: at.as_micros(),
            model: model.to_string(),
            status: status.clone(),
            ttft: ttft.map(nanoseconds),
            duration: duration.map(nanoseconds),
            observed_rank: observed_rank.map(DpRank::get),
            tokens: usage.map(|it| wire::outcome::Tokens {
                prompt: it.prompt.get(),
                completion: it.completion.get(),
                cached: it.cached.map(Tokens::get),
            }),
            waterfall: waterfall.as_ref().map(Waterfall::to_wire),
        }
    }

    fn from_wire(message: wire::Outcome) -> Result<Self, DecodeError> {
        let router = InstanceId::new(&message.router);
        let model = ModelName::new(&message.model);
        Ok(Self {
            id: id::<Self>(&message.id)?,
            router: router.map_err(|why| invalid::<Self>("router", why))?,
            at: Timestamp::from_micros(message.at),
            model: model.map_err(|why| invalid::<Self>("model", why))?,
            status: message.status,
            ttft: message.ttft.map(Duration::from_nanos),
            duration: message.duration.map(Duration::from_nanos),
            observed_rank: message.observed_rank.map(DpRank::new),
            usage: message.tokens.map(|it| Usage {
                prompt: Tokens::new(it.prompt),
                completion: Tokens::new(it.completion),
                cached: it.cached.map(Tokens::new),
            }),
            waterfall: message.waterfall.map(Waterfall::from_wire).transpose()?,
        })
    }
}

impl Wire for Waterfall {
    const WHAT: &'static str = "waterfall";
    type Message = wire::Waterfall;

    fn to_wire(&self) -> wire::Waterfall {
        let Levels {
            isl,
            ceiling,
            stored,
            best,
            ready,
            chosen,
            realised,
            sub_block,
            rank,
            carrier,
        } = self.levels();
        wire::Waterfall {
            isl: isl.get(),
            ceiling: ceiling.get(),
            stored: stored.get(),
            best: best.get(),
            ready: ready.get(),
            chosen: chosen.get(),
            realised: realised.map(Tokens::get),
            sub_block: sub_block.get(),
            rank_known: rank == RankKnowledge::Known,
            carrier_unfinished: carrier == Carrier::Unfinished,
        }
    }

    fn from_wire(message: wire::Waterfall) -> Result<Self, DecodeError> {
        let levels = Levels {
            isl: Tokens::new(message.isl),
            ceiling: Tokens::new(message.ceiling),
            stored: Tokens::new(message.stored),
            best: Tokens::new(message.best),
            ready: Tokens::new(message.ready),
            chosen: Tokens::new(message.chosen),
            realised: message.realised.map(Tokens::new),
            sub_block: Tokens::new(message.sub_block),
            rank: match message.rank_known {
                true => RankKnowledge::Known,
                false => RankKnowledge::Unknown,
            },
            carrier: match message.carrier_unfinished {
                true => Carrier::Unfinished,
                false => Carrier::FinishedOrUnknown,
            },
        };
        Self::try_from(levels).map_err(|why| invalid::<Self>("levels", why))
    }
}
