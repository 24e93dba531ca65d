//! Events once more.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use contracts::grpc::{RemoteFeed, Services};
use contracts::rpc::{CallError, Feed};
use domain::{EventSeq, Target};
use proptest::prelude::*;

use crate::origin::{Origins, for_many};
use crate::samples;

struct Stub {
    answer: Result<(), CallError>,
    asked: Mutex<Vec<(Target, EventSeq)>>,
}

#[async_trait]
impl Feed for Stub {
    async fn resync(&self, target: &Target, from: EventSeq) -> Result<(), CallError> {
        self.asked.lock().unwrap().push((target.clone(), from));
        self.answer.clone()
    }
}

fn origins(answer: Result<(), CallError>) -> (Arc<Stub>, Origins<dyn Feed>) {
    let asked = Mutex::default();
    let stub = Arc::new(Stub { answer, asked });
    let remote = |peer| -> Arc<dyn Feed> { Arc::new(RemoteFeed::new(peer)) };
    let origins = Origins::of(stub.clone() as Arc<dyn Feed>, Services::feed, remote);
    (stub, origins)
}

#[test]
fn what_is_asked_for_again_arrives() {
    let (stub, origins) = origins(Ok(()));
    let values = (samples::target(), any::<u64>().prop_map(EventSeq::new));
    for_many(values, async |(target, from)| {
        for feed in &origins.all {
            prop_assert_eq!(feed.resync(&target, from).await, Ok(()));
            prop_assert_eq!(
                stub.asked.lock().unwrap().pop(),
                Some((target.clone(), from))
            );
        }
        Ok(())
    });
}

#[tokio::test]
async fn a_failure_keeps_its_meaning() {
    for failure in samples::failures("event-ingest") {
        let (_, origins) = origins(Err(failure.clone()));
        for feed in &origins.all {
            let target = "w1#1/0".parse().unwrap();
            let answer = feed.resync(&target, EventSeq::new(3)).await;
            assert_eq!(answer, Err(failure.clone()));
        }
    }
}
