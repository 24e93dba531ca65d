//! Bindings.

use std::any::Any;
use std::sync::{Arc, Mutex};

use ::affinity::{Binding, ConversationKey, TurnEnd};
use async_trait::async_trait;
use bus::Revision;
use contracts::grpc::{RemoteAffinity, Services, limits};
use contracts::rpc::{
    Acquire, Affinity, Bound, CallError, Confirm, Filter, Move, Page, Reassign, Release, Renew,
    Search, Unbind,
};
use domain::{DpRank, Tokens};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::origin::{Origins, for_many};
use crate::samples;

/// Answers what it is told to, and keeps the last request.
struct Stub {
    asked: Mutex<Option<Box<dyn Any + Send>>>,
    bound: Mutex<Result<Bound, CallError>>,
    all: Mutex<Vec<Bound>>,
    page: Mutex<Page>,
}

impl Stub {
    fn note(&self, asked: impl Any + Send) -> Result<Bound, CallError> {
        *self.asked.lock().unwrap() = Some(Box::new(asked));
        self.bound.lock().unwrap().clone()
    }

    /// What was asked last.
    fn asked<T: Any>(&self) -> Option<T> {
        let asked = self.asked.lock().unwrap().take()?;
        asked.downcast().ok().map(|it| *it)
    }
}

#[async_trait]
impl Affinity for Stub {
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError> {
        // A revision of zero stands for no binding.
        let bound = self.note(key.clone())?;
        Ok(Some(bound).filter(|it| it.revision != Revision(0)))
    }

    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError> {
        self.note(request)
    }

    async fn confirm(&self, request: Confirm) -> Result<Bound, CallError> {
        self.note(request)
    }

    async fn rebind(&self, request: Move) -> Result<Bound, CallError> {
        self.note(request)
    }

    async fn release(&self, request: Release) -> Result<(), CallError> {
        self.note(request).map(|_| ())
    }

    async fn renew(&self, request: Renew) -> Result<(), CallError> {
        self.note(request).map(|_| ())
    }

    async fn list(&self, limit: usize) -> Result<Vec<Bound>, CallError> {
        self.note(limit)?;
        Ok(self
            .all
            .lock()
            .unwrap()
            .iter()
            .take(limit)
            .cloned()
            .collect())
    }

    async fn search(&self, search: Search) -> Result<Page, CallError> {
        self.note(search)?;
        Ok(self.page.lock().unwrap().clone())
    }

    async fn reassign(&self, request: Reassign) -> Result<Bound, CallError> {
        self.note(request)
    }

    async fn unbind(&self, request: Unbind) -> Result<(), CallError> {
        self.note(request).map(|_| ())
    }

    async fn import(&self, binding: Binding) -> Result<Option<Bound>, CallError> {
        let bound = self.note(binding)?;
        Ok(Some(bound).filter(|it| it.revision != Revision(0)))
    }
}

fn origins() -> (Arc<Stub>, Origins<dyn Affinity>) {
    let unset = CallError::FailedPrecondition { why: String::new() };
    let stub = Arc::new(Stub {
        asked: Mutex::default(),
        bound: Mutex::new(Err(unset)),
        all: Mutex::default(),
        page: Mutex::default(),
    });
    let remote = |peer| -> Arc<dyn Affinity> { Arc::new(RemoteAffinity::new(peer)) };
    let origins = Origins::of(
        stub.clone() as Arc<dyn Affinity>,
        Services::affinity,
        remote,
    );
    (stub, origins)
}

/// That `$call` brings `$request` there and what stands back, at both origins.
macro_rules! arrives {
    ($origins:ident, $stub:ident, $request:expr, $expected:expr, $call:expr) => {
        for affinity in &$origins.all {
            let request = $request.clone();
            prop_assert_eq!($call(affinity.clone(), $request.clone()).await, $expected);
            prop_assert_eq!($stub.asked(), Some(request));
        }
    };
}

type Store = Arc<dyn Affinity>;

#[test]
fn reading_and_binding_arrive_and_what_stands_comes_back() {
    let (stub, origins) = origins();
    let asked = (samples::key(), samples::target(), samples::instance());
    let values = (asked, samples::owner(), samples::bound());
    for_many(values, async |((key, to, actor), owner, bound)| {
        *stub.bound.lock().unwrap() = Ok(bound.clone());
        let found = Some(bound.clone()).filter(|it| it.revision != Revision(0));
        arrives!(
            origins,
            stub,
            key,
            Ok(found.clone()),
            async |it: Store, key| { it.get(&key).await }
        );
        let import = bound.binding.clone();
        arrives!(
            origins,
            stub,
            import,
            Ok(found.clone()),
            async |it: Store, binding| { it.import(binding).await }
        );
        let acquire = Acquire {
            key: key.clone(),
            proposed: to.clone(),
            owner,
            actor: actor.clone(),
        };
        arrives!(
            origins,
            stub,
            acquire,
            Ok(bound.clone()),
            async |it: Store, acquire| { it.acquire(acquire).await }
        );
        let reassign = Reassign {
            key: key.clone(),
            to,
            actor: actor.clone(),
        };
        arrives!(
            origins,
            stub,
            reassign,
            Ok(bound.clone()),
            async |it: Store, request| { it.reassign(request).await }
        );
        let unbind = Unbind { key, actor };
        arrives!(origins, stub, unbind, Ok(()), async |it: Store, unbind| {
            it.unbind(unbind).await
        });
        Ok(())
    });
}

#[test]
fn reports_of_turns_arrive_and_what_stands_comes_back() {
    let (stub, origins) = origins();
    let asked = (samples::key(), samples::target(), samples::instance());
    let why = (samples::evidence(), samples::reason(), any::<Option<u64>>());
    let keys = vec(samples::key(), 0..20);
    for_many(
        (asked, why, samples::bound(), keys),
        async |(asked, why, bound, keys)| {
            let (key, target, actor) = asked;
            let (evidence, reason, held) = why;
            *stub.bound.lock().unwrap() = Ok(bound.clone());
            let confirm = Confirm {
                key: key.clone(),
                asked: target.clone(),
                observed: bound.binding.target.clone(),
                evidence,
                actor: actor.clone(),
            };
            arrives!(
                origins,
                stub,
                confirm,
                Ok(bound.clone()),
                async |it: Store, confirm| { it.confirm(confirm).await }
            );
            let rebind = Move {
                key: key.clone(),
                at: bound.revision,
                to: target.clone(),
                reason,
                actor: actor.clone(),
            };
            arrives!(
                origins,
                stub,
                rebind,
                Ok(bound.clone()),
                async |it: Store, rebind| { it.rebind(rebind).await }
            );
            let served = |held| TurnEnd::Served {
                held: Tokens::new(held),
            };
            let release = Release {
                key,
                target,
                end: held.map_or(TurnEnd::Unserved, served),
                actor: actor.clone(),
            };
            arrives!(
                origins,
                stub,
                release,
                Ok(()),
                async |it: Store, release| { it.release(release).await }
            );
            let renew = Renew { actor, keys };
            arrives!(origins, stub, renew, Ok(()), async |it: Store, renew| {
                it.renew(renew).await
            });
            Ok(())
        },
    );
}

#[test]
fn a_search_arrives_and_its_page_comes_back() {
    let (stub, origins) = origins();
    let filter = (
        option::of(samples::key()),
        option::of("\\PC{0,9}"),
        option::of(samples::worker()),
        any::<(Option<u32>, Option<bool>)>(),
    );
    let page = (
        vec(samples::bound(), 0..5),
        option::of(samples::binding_key()),
    );
    let values = (filter, option::of(samples::binding_key()), page);
    for_many(values, async |(filter, after, (bindings, next))| {
        let (key, conversation, worker, (dp_rank, confirmed)) = filter;
        let search = Search {
            after,
            limit: bindings.len(),
            filter: Filter {
                tenant: key.as_ref().map(|it| it.tenant.clone()),
                model: key.map(|it| it.model),
                conversation,
                worker,
                dp_rank: dp_rank.map(DpRank::new),
                confirmed,
            },
        };
        let page = Page { bindings, next };
        *stub.page.lock().unwrap() = page.clone();
        let bound = samples::bound().new_tree(&mut Default::default()).unwrap();
        *stub.bound.lock().unwrap() = Ok(proptest::strategy::ValueTree::current(&bound));
        arrives!(
            origins,
            stub,
            search,
            Ok(page.clone()),
            async |it: Store, search| { it.search(search).await }
        );
        Ok(())
    });
}

#[tokio::test]
async fn a_list_longer_than_a_message_comes_whole() {
    let (stub, origins) = origins();
    let bound = samples::bound().new_tree(&mut Default::default()).unwrap();
    let bound = proptest::strategy::ValueTree::current(&bound);
    let all: Vec<Bound> = (0..10 * limits::PAGE as u64)
        .map(|revision| Bound {
            revision: Revision(revision),
            ..bound.clone()
        })
        .collect();
    *stub.bound.lock().unwrap() = Ok(bound);
    *stub.all.lock().unwrap() = all.clone();
    for affinity in &origins.all {
        for limit in [0, 1, limits::PAGE, limits::PAGE + 1, usize::MAX] {
            let listed = affinity.list(limit).await.unwrap();
            assert_eq!(listed, all[..limit.min(all.len())]);
        }
    }
}

#[tokio::test]
async fn a_failure_keeps_its_meaning() {
    let (stub, origins) = origins();
    for failure in samples::failures("affinity-store") {
        *stub.bound.lock().unwrap() = Err(failure.clone());
        for affinity in &origins.all {
            let search = affinity.search(Search::default()).await;
            assert_eq!(search, Err(failure.clone()));
            assert_eq!(affinity.list(3).await, Err(failure.clone()));
        }
    }
}
