//! Policies that others have published, as they describe them.
//!
//! In their formulas `L` is the request's tokens, `m` what of them a target holds in any tier, `miss = L - m`, `P` the
//! prefill work pending there, `A` the requests active there and `B` the tokens of a block. `P` and `A` are the router's
//! own counts, as current for a published policy as for ours; no policy credits a prefix that is still being computed.
//! Exact ties are drawn from the seed unless the source says otherwise.

mod aibrix;
mod blind;
mod dynamo;
mod field;
mod llmd;
mod mooncake;
mod preble;
mod products;
mod sglang;
mod smetric;
mod sticky;
mod tensorrt;

use crate::Policy;
use crate::draw::Draw;

pub use aibrix::Aibrix;
pub use dynamo::Dynamo;
pub(crate) use field::{Field, Pick};
pub use llmd::{LlmdAffinity, LlmdBlend};
pub use mooncake::MooncakeConductor;
pub use preble::PrebleE2;
pub use products::LoadAware;
pub use sglang::{SglCacheAware, SglNearMin};
pub use smetric::Smetric;
pub use sticky::{BoundedHash, VerlMargin};
pub use tensorrt::{TrtConvAdp, TrtKvAdp};

/// What a published policy chooses; none for ours.
pub(crate) fn pick(policy: Policy, field: &Field<'_>, draw: &mut Draw) -> Option<Pick> {
    Some(match policy {
        Policy::RoundRobin => blind::round_robin(field),
        Policy::Random => blind::random(field, draw),
        Policy::TargetRoundRobin => blind::target_round_robin(field),
        Policy::PowerOfTwo => blind::power_of_two(field, draw),
        Policy::LeastLoad => blind::least_load(field, draw),
        Policy::VllmDplb => blind::vllm_dplb(field, draw),
        Policy::MaxOverlap => products::max_overlap(field, draw),
        Policy::Lmetric => products::lmetric(field, draw),
        Policy::Lpwl => products::lpwl(field, draw),
        Policy::MinMax => products::minmax(field, draw),
        Policy::LoadAware(numbers) => products::load_aware(field, &numbers, draw),
        Policy::SglCacheAware(numbers) => sglang::cache_aware(field, &numbers, draw),
        Policy::SglNearMin(numbers) => sglang::near_min(field, &numbers, draw),
        Policy::BoundedHash(numbers) => sticky::bounded_hash(field, &numbers, draw),
        Policy::StickyLeast => sticky::sticky_least(field, draw),
        Policy::VerlMargin(numbers) => sticky::verl_margin(field, &numbers, draw),
        Policy::Dynamo(numbers) => dynamo::dynamo(field, &numbers, draw),
        Policy::TrtKvAdp(numbers) => tensorrt::kv_adp(field, &numbers, draw),
        Policy::TrtConvAdp(numbers) => tensorrt::conv_adp(field, &numbers, draw),
        Policy::LlmdAffinity(numbers) => llmd::affinity(field, &numbers, draw),
        Policy::LlmdBlend(numbers) => llmd::blend(field, &numbers, draw),
        Policy::Smetric(numbers) => smetric::smetric(field, &numbers, draw),
        Policy::PrebleE2(numbers) => preble::e2(field, &numbers, draw),
        Policy::MooncakeConductor(numbers) => mooncake::conductor(field, &numbers, draw),
        Policy::Aibrix(numbers) => aibrix::aibrix(field, &numbers, draw),
        Policy::Kv(_) => return None,
    })
}
