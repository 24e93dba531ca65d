//! What of its kind's work a service does, of `fleet.proto`.

use domain::{ServiceInstance, Share, WorkerId};

use super::{invalid, wire};
use crate::DecodeError;
use crate::rpc::Shard;

pub(super) fn to_wire(share: &Share) -> Option<wire::service::Share> {
    use wire::service::{Shard, Share as Sent, Workers};
    match share {
        Share::Whole => None,
        Share::Shard { index, of } => Some(Sent::Shard(Shard {
            index: *index,
            of: *of,
        })),
        Share::Workers(ids) => Some(Sent::Workers(Workers {
            ids: ids.iter().map(ToString::to_string).collect(),
        })),
    }
}

pub(super) fn from_wire(share: Option<wire::service::Share>) -> Result<Share, DecodeError> {
    use wire::service::Share as Sent;
    Ok(match share {
        None => Share::Whole,
        Some(Sent::Shard(it)) => {
            let shard = Shard::new(it.index, it.of);
            shard.map_err(|why| invalid::<ServiceInstance>("shard", why))?;
            Share::Shard {
                index: it.index,
                of: it.of,
            }
        }
        Some(Sent::Workers(it)) => {
            let ids = it.ids.iter().map(|it| WorkerId::new(it));
            let ids = ids.collect::<Result<_, _>>();
            Share::Workers(ids.map_err(|why| invalid::<ServiceInstance>("workers", why))?)
        }
    })
}
