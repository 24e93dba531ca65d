//! How much may wait for its outcome: of everybody, and of one tenant among several.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::TenantId;

use crate::error::ApiError;
use crate::tenant::Tenant;

/// Decisions that wait at once.
const MAX_AWAITED: usize = 16_384;
/// Candidates of all of them, about 250 bytes each and so 1 GB: before a large fleet fewer decisions may wait.
const MAX_CANDIDATES: usize = 4_000_000;
/// Blocks of all their prompts. A reservation keeps a hash of 8 bytes for each 16 of them: 256 MiB.
const MAX_BLOCKS: usize = 512 << 20;
/// Of all of it, the part that a tenant may take where there are several: whoever tells of nothing leaves room for
/// three others that do the same.
const TENANT_PART: usize = 4;

/// What there is room for.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken: Arc<Taken>,
}

/// Guards what is taken; held to add or to take away one share.
type Taken = Mutex<HashMap<TenantId, Used>>;

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    decisions: usize,
    blocks: usize,
}

/// What one decision takes up, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    taken: Arc<Taken>,
    tenant: TenantId,
    blocks: usize,
}

impl Room {
    /// Room for a decision made among so many candidates for a prompt of so many blocks.
    pub(super) fn share(
        &self,
        tenant: &Tenant,
        candidates: usize,
        blocks: usize,
    ) -> Result<Share, ApiError> {
        let most = Used {
            decisions: room_for(candidates),
            blocks: MAX_BLOCKS,
        };
        let own_most = match tenant.is_named() {
            true => Used {
                decisions: most.decisions.div_ceil(TENANT_PART),
                blocks: most.blocks / TENANT_PART,
            },
            false => most,
        };
        let mut taken = lock(&self.taken);
        let all = taken.values().fold(Used::default(), |all, it| Used {
            decisions: all.decisions + it.decisions,
            blocks: all.blocks + it.blocks,
        });
        let own = taken.get(&tenant.id).copied().unwrap_or_default();
        if !own.has_room(blocks, own_most) {
            return Err(full(own_most, "of this tenant "));
        }
        if !all.has_room(blocks, most) {
            return Err(full(most, ""));
        }
        let own = taken.entry(tenant.id.clone()).or_default();
        own.decisions += 1;
        own.blocks += blocks;
        Ok(Share {
            taken: self.taken.clone(),
            tenant: tenant.id.clone(),
            blocks,
        })
    }
}

impl Used {
    const fn has_room(self, blocks: usize, most: Self) -> bool {
        self.decisions < most.decisions && self.blocks + blocks <= most.blocks
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(used) = taken.get_mut(&self.tenant) {
            used.decisions -= 1;
            used.blocks -= self.blocks;
        }
    }
}

fn lock(taken: &Taken) -> MutexGuard<'_, HashMap<TenantId, Used>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many decisions may wait that were made among so many candidates.
fn room_for(candidates: usize) -> usize {
    MAX_AWAITED.min(MAX_CANDIDATES / candidates.max(1))
}

fn full(most: Used, whose: &str) -> ApiError {
    ApiError::Unavailable {
        why: format!(
            "{} decisions, or {} blocks, {whose}wait for their outcome already",
            most.decisions, most.blocks
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::{SaltSecret, TenantConfig, Tenants};

    fn two() -> Vec<Arc<Tenant>> {
        let of = |name: &str| TenantConfig {
            keys: vec![format!("key-of-{name}").parse().unwrap()],
            ..TenantConfig::new(name.parse().unwrap())
        };
        let secret = SaltSecret::new("0123456789abcdef");
        let tenants = [of("a"), of("b")];
        let tenants = Tenants::new(&"default".parse().unwrap(), &tenants, Some(&secret)).unwrap();
        let keys = ["key-of-a", "key-of-b"];
        keys.map(|it| tenants.of([it.as_bytes()]).unwrap()).to_vec()
    }

    #[test]
    fn before_a_large_fleet_fewer_decisions_may_wait() {
        assert_eq!(room_for(0), MAX_AWAITED);
        assert_eq!(room_for(64), MAX_AWAITED);
        assert_eq!(room_for(512), 7_812);
        assert_eq!(room_for(20_000), 200);
    }

    #[test]
    fn a_tenant_that_tells_of_nothing_leaves_room_for_others() {
        let [a, b] = &two()[..] else { panic!("two") };
        let room = Room::default();
        let part = MAX_AWAITED / TENANT_PART;
        let held: Vec<_> = (0..part).map(|_| room.share(a, 2, 1).unwrap()).collect();
        assert!(room.share(a, 2, 1).is_err());
        assert!(room.share(b, 2, 1).is_ok());
        drop(held);
        assert!(room.share(a, 2, 1).is_ok());
    }

    #[test]
    fn long_prompts_take_up_room_by_their_length() {
        let [a, b] = &two()[..] else { panic!("two") };
        let room = Room::default();
        let part = MAX_BLOCKS / TENANT_PART;
        let held = room.share(a, 2, part).unwrap();
        assert!(room.share(a, 2, 1).is_err());
        assert!(room.share(b, 2, part).is_ok());
        drop(held);
        assert!(room.share(a, 2, part).is_ok());
        assert!(room.share(a, 2, part + 1).is_err());
    }

    #[test]
    fn a_tenant_alone_has_all_of_it() {
        let alone = Tenants::new(&"default".parse().unwrap(), &[], None).unwrap();
        let alone = alone.of([]).unwrap();
        let room = Room::default();
        let held = room.share(&alone, 2, MAX_BLOCKS).unwrap();
        assert!(room.share(&alone, 2, 1).is_err());
        drop(held);
    }
}
