//! Asking an index at a distance: a long request sends a sample of its hashes, and is answered exactly.

use std::collections::BTreeSet;

use futures::future::{join, join_all};

use super::{CallError, OverlapAnswer, OverlapRequest, PrefixHashes, SAMPLED};

/// Requests of more blocks are asked for by a sample. So many hashes are 8 KiB, which are sent in less time than a
/// second question takes.
pub const DENSE_BLOCKS: usize = 1_024;

/// The answer to a dense request from one that `ask` carries, without sending all of its hashes: first every
/// [`SAMPLED`]th, then, where an answer ends at one of those, each of the blocks between it and the next.
///
/// Who holds how much and what was ever stored is exact, as of the moments of two questions. A ceiling that nobody has
/// announced yet may be up to [`SAMPLED`]` - 1` blocks too low where a request leaves one that was carried in the
/// middle: of that one only the sample and its last block are recorded. Where the second question fails, the first one's
/// answer stands, which says nowhere too much.
pub async fn overlap_by_sample<Answered>(
    request: OverlapRequest,
    ask: impl Fn(OverlapRequest) -> Answered,
) -> Result<OverlapAnswer, CallError>
where
    Answered: Future<Output = Result<OverlapAnswer, CallError>>,
{
    let dense = match &request.hashes {
        PrefixHashes::Dense(hashes) if DENSE_BLOCKS < hashes.len() => hashes,
        _ => return ask(request).await,
    };
    let sample = OverlapRequest {
        hashes: PrefixHashes::sparse(dense, SAMPLED),
        ..request.clone()
    };
    let answer = ask(sample).await?;
    let deepest = answer.groups.iter().map(|it| it.depths.disk).max();
    let held = BTreeSet::from([deepest.unwrap_or(0), answer.stored]);
    let is_open = |it: &u32| it.is_multiple_of(SAMPLED.get()) && (*it as usize) < dense.len();
    let behind = |after: u32, until: usize| {
        ask(OverlapRequest {
            namespace: request.namespace.clone(),
            hashes: PrefixHashes::window(&dense[..until], after as usize),
            record: false,
        })
    };
    let held = held.into_iter().filter(is_open).map(async |after| {
        let beyond = behind(after, dense.len()).await?;
        // Where the sample was recorded it has carried its own blocks by now.
        Ok::<_, CallError>(OverlapAnswer {
            ceiling: beyond.stored,
            ..beyond
        })
    });
    let carried = Some(answer.ceiling).filter(is_open).map(|after| {
        let next = (after + SAMPLED.get()) as usize;
        behind(after, next.min(dense.len()) - 1)
    });
    let (held, carried) = join(join_all(held), join_all(carried)).await;
    let answers = held.into_iter().chain(carried).flatten();
    let merged = OverlapAnswer::merge(std::iter::once(answer).chain(answers));
    Ok(merged.expect("there is at least the first answer"))
}

#[cfg(test)]
mod tests {
    use domain::{BlockSize, Namespace, SequenceHash};
    use futures::FutureExt as _;
    use prost::Message as _;

    use super::*;
    use crate::convert::Wire as _;

    #[test]
    fn a_million_tokens_are_asked_for_in_ten_kilobytes() {
        let request = OverlapRequest {
            namespace: Namespace {
                model: "m".parse().unwrap(),
                lora: None,
                salt: None,
                block_size: BlockSize::new(16).unwrap(),
            },
            hashes: PrefixHashes::Dense((0..65_536).map(SequenceHash::new).collect()),
            record: true,
        };
        assert!(512 * 1024 < request.to_wire().encoded_len());
        let sent = std::cell::Cell::new(0);
        let ask = async |request: OverlapRequest| {
            sent.set(sent.get() + request.to_wire().encoded_len());
            Ok(OverlapAnswer {
                stored: 640,
                ceiling: 1_280,
                ..OverlapAnswer::default()
            })
        };
        let answered = overlap_by_sample(request, ask).now_or_never();
        answered.unwrap().unwrap();
        let bytes = sent.get();
        assert!((8_192..10_240).contains(&bytes), "{bytes} bytes");
    }
}
