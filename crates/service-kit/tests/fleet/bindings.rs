//! Several affinity stores: which is asked, and when another one is.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::{Arc, Mutex};

use affinity::{Binding, ConversationKey, Owner};
use async_trait::async_trait;
use contracts::grpc::Services;
use contracts::rpc::{
    Acquire, Affinity, Bound, CallError, Confirm, Move, Page, Reassign, Release, Renew, Search,
    Unbind,
};
use domain::{ServiceKind, Share};
use tokio::sync::mpsc;

use crate::world::{Process, World};

const KIND: ServiceKind = ServiceKind::AffinityStore;

/// Has no bindings, and notes the conversations that it is asked about.
#[derive(Clone, Default)]
struct Stub {
    asked: Arc<Mutex<BTreeSet<String>>>,
    renewed: Arc<Mutex<BTreeSet<String>>>,
    /// Where it hangs instead of acquiring, whom it tells.
    hangs: Option<mpsc::UnboundedSender<()>>,
}

fn unused<T>() -> Result<T, CallError> {
    let why = "a stub".to_owned();
    Err(CallError::InvalidArgument { why })
}

#[async_trait]
impl Affinity for Stub {
    async fn get(&self, key: &ConversationKey) -> Result<Option<Bound>, CallError> {
        self.asked
            .lock()
            .unwrap()
            .insert(key.conversation.to_string());
        Ok(None)
    }

    async fn acquire(&self, request: Acquire) -> Result<Bound, CallError> {
        let conversation = request.key.conversation.to_string();
        self.asked.lock().unwrap().insert(conversation);
        if let Some(hangs) = &self.hangs {
            hangs.send(()).unwrap();
            pending::<()>().await;
        }
        unused()
    }

    async fn confirm(&self, _: Confirm) -> Result<Bound, CallError> {
        unused()
    }

    async fn rebind(&self, _: Move) -> Result<Bound, CallError> {
        unused()
    }

    async fn release(&self, _: Release) -> Result<(), CallError> {
        Ok(())
    }

    async fn renew(&self, request: Renew) -> Result<(), CallError> {
        let keys = request
            .keys
            .into_iter()
            .map(|it| it.conversation.to_string());
        self.renewed.lock().unwrap().extend(keys);
        Ok(())
    }

    async fn list(&self, _: usize) -> Result<Vec<Bound>, CallError> {
        Ok(Vec::new())
    }

    async fn search(&self, _: Search) -> Result<Page, CallError> {
        Ok(Page::default())
    }

    async fn reassign(&self, _: Reassign) -> Result<Bound, CallError> {
        unused()
    }

    async fn unbind(&self, _: Unbind) -> Result<(), CallError> {
        Ok(())
    }

    async fn import(&self, _: Binding) -> Result<Option<Bound>, CallError> {
        Ok(None)
    }
}

async fn store(world: &World, id: &str, stub: &Stub) -> Process {
    let services = Services::default().affinity(Arc::new(stub.clone()));
    world.start((id, KIND, Share::Whole), services).await
}

fn key(conversation: usize) -> ConversationKey {
    ConversationKey {
        tenant: "t".parse().unwrap(),
        model: "m".parse().unwrap(),
        conversation: format!("c-{conversation}").parse().unwrap(),
    }
}

fn acquire(conversation: usize) -> Acquire {
    Acquire {
        key: key(conversation),
        proposed: "w1#1/0".parse().unwrap(),
        owner: Owner::Router,
        actor: "r1".parse().unwrap(),
    }
}

/// Asks about all conversations, some more than once where a busy machine was late.
async fn ask_about_all(world: &World) {
    for conversation in 0..40 {
        while world
            .fleet
            .affinity()
            .get(&key(conversation))
            .await
            .is_err()
        {}
    }
}

fn taken(stub: &Stub) -> BTreeSet<String> {
    std::mem::take(&mut stub.asked.lock().unwrap())
}

#[tokio::test]
async fn a_conversation_is_asked_about_at_one_store_and_at_another_once_that_is_gone() {
    let world = World::new();
    let stubs = [Stub::default(), Stub::default()];
    let one = store(&world, "one", &stubs[0]).await;
    let _other = store(&world, "other", &stubs[1]).await;
    ask_about_all(&world).await;
    let [first, second] = stubs.each_ref().map(taken);
    assert!(!first.is_empty() && !second.is_empty());
    assert_eq!(
        first.len() + second.len(),
        40,
        "{:?}",
        first.intersection(&second)
    );

    let renew = Renew {
        actor: "r1".parse().unwrap(),
        keys: (0..40).map(key).collect(),
    };
    assert_eq!(world.fleet.affinity().renew(renew).await, Ok(()));
    assert_eq!(*stubs[0].renewed.lock().unwrap(), first);
    assert_eq!(*stubs[1].renewed.lock().unwrap(), second);

    drop(one);
    ask_about_all(&world).await;
    assert_eq!(taken(&stubs[1]).len(), 40);
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_again() {
    let world = World::new();
    let (say, mut said) = mpsc::unbounded_channel();
    let hanging = Stub {
        hangs: Some(say),
        ..Stub::default()
    };
    let stubs = [hanging.clone(), hanging];
    let mut processes = vec![
        store(&world, "one", &stubs[0]).await,
        store(&world, "other", &stubs[1]).await,
    ];
    let affinity = world.fleet.affinity();
    let answer = affinity.acquire(acquire(0)).await;
    // It hangs until its deadline, or the store is killed.
    let lost = |answer: &Result<Bound, CallError>| {
        matches!(
            answer,
            Err(CallError::DeadlineExceeded { .. } | CallError::Unavailable { .. })
        )
    };
    assert!(lost(&answer), "{answer:?}");
    said.recv().await.unwrap();
    assert!(said.try_recv().is_err(), "only one was asked");

    // One that is not reached has done nothing: the other is asked.
    let first = usize::from(stubs[0].asked.lock().unwrap().is_empty());
    drop(processes.remove(first));
    // The one that has failed is asked last for a while, so that either may be first.
    let answer = affinity.acquire(acquire(0)).await;
    assert!(lost(&answer), "{answer:?}");
    said.recv().await.unwrap();
    assert!(!stubs[1 - first].asked.lock().unwrap().is_empty());
}
