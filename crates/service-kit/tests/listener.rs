//! The gRPC listener: health, reflection, certificates, and an end that breaks nothing off.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use contracts::grpc::{Peer, RemoteDispatch, RemoteFeed, Services};
use contracts::rpc::{
    CallEnd, CallError, CallHead, CallStream, Dispatch, DispatchError, Down, Feed, HttpHead,
};
use domain::{EventSeq, Target};
use futures::stream::{self, StreamExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use service_kit::{CancellationToken, Clock, Context, GrpcListener, GrpcSettings, GrpcTls, Health};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// Nothing in these tests takes this long unless it never happens.
const PATIENCE: Duration = Duration::from_secs(30);

struct Ingest;

#[async_trait]
impl Feed for Ingest {
    async fn resync(&self, _: &Target, _: EventSeq) -> Result<(), CallError> {
        Ok(())
    }
}

/// Begins an answer, and goes on when it is told to.
struct Engine(std::sync::Mutex<Option<oneshot::Receiver<()>>>);

#[async_trait]
impl Dispatch for Engine {
    async fn call(&self, _: CallHead, _: Bytes) -> Result<(HttpHead, CallStream), DispatchError> {
        let go_on = self.0.lock().unwrap().take().unwrap();
        let begin = stream::iter([Ok(Down::Chunk(Bytes::from_static(b"begin")))]);
        let end = stream::once(async move {
            go_on.await.unwrap();
            Ok(Down::End(CallEnd::default()))
        });
        let head = HttpHead {
            status: 200,
            headers: Vec::new(),
        };
        Ok((head, begin.chain(end).boxed()))
    }
}

struct Server {
    address: String,
    context: Context,
    shutdown: CancellationToken,
    tasks: JoinSet<anyhow::Result<()>>,
}

async fn start(settings: &GrpcSettings, services: Services) -> Server {
    let listener = GrpcListener::bind(settings).await.unwrap();
    let context = Context {
        registry: prometheus::Registry::new(),
        health: Health::default(),
        clock: Clock::system(),
    };
    let shutdown = CancellationToken::new();
    let address = listener.address().to_owned();
    let mut tasks = JoinSet::new();
    tasks.spawn(listener.serve(services, context.clone(), shutdown.clone()));
    Server {
        address,
        context,
        shutdown,
        tasks,
    }
}

async fn until_health(server: &Server, service: &str, expected: ServingStatus) {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let mut client = HealthClient::new(endpoint.connect_lazy());
    let seen = async {
        loop {
            let request = HealthCheckRequest {
                service: service.to_owned(),
            };
            let status = client.check(request).await.unwrap().into_inner().status;
            if status == i32::from(expected) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, seen).await.unwrap();
}

async fn resync(peer: Peer) -> Result<(), CallError> {
    let target = "w1#1/0".parse().unwrap();
    RemoteFeed::new(peer)
        .resync(&target, EventSeq::new(1))
        .await
}

#[tokio::test]
async fn health_follows_readiness_for_each_service_and_the_whole() {
    let services = Services::default().feed(Arc::new(Ingest));
    let server = start(&GrpcSettings::default(), services).await;
    let component = server.context.health.component("ingest");
    for service in ["", "rankway.v1.Feed"] {
        until_health(&server, service, ServingStatus::NotServing).await;
    }
    component.ready();
    for service in ["", "rankway.v1.Feed"] {
        until_health(&server, service, ServingStatus::Serving).await;
    }
}

/// What a server that serves `rankway.v1.Feed` says of itself.
async fn reflect(asked: MessageRequest) -> MessageResponse {
    let services = Services::default().feed(Arc::new(Ingest));
    let server = start(&GrpcSettings::default(), services).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    let mut client = ServerReflectionClient::new(endpoint.connect_lazy());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(asked),
    };
    let answers = client.server_reflection_info(stream::iter([request])).await;
    let answer = answers.unwrap().into_inner().message().await.unwrap();
    answer.unwrap().message_response.unwrap()
}

#[tokio::test]
async fn reflection_describes_what_is_served() {
    let symbol = MessageRequest::FileContainingSymbol("rankway.v1.Feed".to_owned());
    let MessageResponse::FileDescriptorResponse(files) = reflect(symbol).await else {
        panic!("it is not described");
    };
    let file = &files.file_descriptor_proto[0];
    let says = |text: &str| file.windows(text.len()).any(|it| it == text.as_bytes());
    assert!(says("ResyncRequest") && says("from_seq"));
}

#[tokio::test]
async fn reflection_names_what_is_served_and_nothing_else() {
    let list = MessageRequest::ListServices(String::new());
    let MessageResponse::ListServicesResponse(list) = reflect(list).await else {
        panic!("they are not listed");
    };
    let names = list.service.iter().map(|it| it.name.as_str());
    let mut names: Vec<&str> = names.filter(|it| !it.contains("reflection")).collect();
    names.sort_unstable();
    assert_eq!(names, ["grpc.health.v1.Health", "rankway.v1.Feed"]);
}

#[tokio::test]
async fn a_server_that_shall_end_says_so_serves_on_and_finishes_its_streams() {
    let (go_on, told) = oneshot::channel();
    let engine = Engine(std::sync::Mutex::new(Some(told)));
    let services = Services::default().feed(Arc::new(Ingest));
    let services = services.dispatch(Arc::new(engine));
    let mut server = start(&GrpcSettings::default(), services).await;
    until_health(&server, "", ServingStatus::Serving).await;
    let peer = Peer::at(&server.address, None).unwrap();
    let head = CallHead {
        worker: "w1".parse().unwrap(),
        dp_rank: None,
        conversation: None,
        method: "POST".to_owned(),
        path: "/".to_owned(),
        headers: Vec::new(),
        usage_injected: false,
    };
    let (_, mut answer) = RemoteDispatch::new(peer.clone())
        .call(head, Bytes::new())
        .await
        .unwrap();
    assert!(matches!(answer.next().await, Some(Ok(Down::Chunk(_)))));

    server.shutdown.cancel();
    until_health(&server, "rankway.v1.Feed", ServingStatus::NotServing).await;
    assert_eq!(server.context.health.missing()["process"], "draining");
    // Who has not heard of it yet is served all the same.
    assert_eq!(resync(peer.clone()).await, Ok(()));

    // In the end new connections are refused, and the stream goes on.
    let refused = async {
        let fresh = || Peer::at(&server.address, None).unwrap();
        while !matches!(resync(fresh()).await, Err(CallError::Unreached { .. })) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, refused).await.unwrap();
    assert!(
        server.tasks.try_join_next().is_none(),
        "a stream is still open"
    );
    go_on.send(()).unwrap();
    let end = timeout(PATIENCE, answer.next()).await.unwrap();
    assert!(matches!(end, Some(Ok(Down::End(_)))), "{end:?}");
    drop((answer, peer));
    let ended = timeout(PATIENCE, server.tasks.join_next()).await.unwrap();
    ended.unwrap().unwrap().unwrap();
}

/// An authority, and certificates that it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Files of a service called `rankway.test`.
    fn files(&self, folder: &Path, who: &str) -> GrpcTls {
        let params = CertificateParams::new(vec!["rankway.test".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let write = |name: &str, text: String| {
            let path = folder.join(format!("{who}-{name}.pem"));
            fs::write(&path, text).unwrap();
            path
        };
        GrpcTls {
            ca: write("ca", self.0.pem()),
            certificate: write("certificate", certificate.pem()),
            key: write("key", key.serialize_pem()),
            name: Some("rankway.test".to_owned()),
        }
    }
}

fn with_tls(tls: GrpcTls) -> GrpcSettings {
    GrpcSettings {
        tls: Some(tls),
        ..GrpcSettings::default()
    }
}

#[tokio::test]
async fn with_certificates_only_those_of_the_same_authority_talk() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let settings = with_tls(ours.files(folder.path(), "server"));
    let server = start(&settings, Services::default().feed(Arc::new(Ingest))).await;
    let peer = |settings: Option<GrpcSettings>| {
        let credentials = settings.and_then(|it| it.credentials().unwrap());
        Peer::at(&server.address, credentials.as_ref()).unwrap()
    };

    let client = with_tls(ours.files(folder.path(), "client"));
    assert_eq!(resync(peer(Some(client.clone()))).await, Ok(()));

    let stranger = with_tls(theirs.files(folder.path(), "stranger"));
    // One who trusts the server, and is not trusted by it.
    let mut intruder = theirs.files(folder.path(), "intruder");
    intruder.ca = client.tls.clone().unwrap().ca;
    let mut elsewhere = client.tls.unwrap();
    elsewhere.name = Some("elsewhere.test".to_owned());
    for refused in [
        None,
        Some(stranger),
        Some(with_tls(intruder)),
        Some(with_tls(elsewhere)),
    ] {
        let answer = resync(peer(refused)).await;
        assert!(
            matches!(
                answer,
                Err(CallError::Unreached { .. } | CallError::Unavailable { .. })
            ),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn settings_that_let_strangers_in_are_refused() {
    let check = |settings: GrpcSettings, expected: &str| {
        let said = settings.check().map_err(|it| it.to_string());
        let said = said.err().unwrap_or_default();
        assert!(said.starts_with(expected), "{said}");
        assert_eq!(said.is_empty(), expected.is_empty());
    };
    let at = |listen: &str| GrpcSettings {
        listen: listen.parse().unwrap(),
        ..GrpcSettings::default()
    };
    check(at("127.0.0.1:0"), "");
    check(at("10.0.0.1:7070"), "grpc.listen is not a loopback address");
    let insecure = |settings| GrpcSettings {
        insecure: true,
        ..settings
    };
    check(insecure(at("10.0.0.1:7070")), "");
    check(insecure(at("0.0.0.0:7070")), "grpc.listen is every address");
    let named = GrpcSettings {
        advertise: Some("index-0:7070".to_owned()),
        ..insecure(at("0.0.0.0:7070"))
    };
    check(named, "");

    let missing = GrpcTls {
        ca: "/nowhere/ca.pem".into(),
        certificate: "/nowhere/certificate.pem".into(),
        key: "/nowhere/key.pem".into(),
        name: None,
    };
    let error = GrpcListener::bind(&with_tls(missing)).await.err().unwrap();
    assert_eq!(error.to_string(), "read grpc.tls.ca from /nowhere/ca.pem");
}
