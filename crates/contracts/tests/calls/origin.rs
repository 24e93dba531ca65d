//! Servers that can be killed, and the two ways to what they serve.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use contracts::grpc::{Peer, Services, server};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestCaseResult, TestRunner};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;

/// Nothing in these tests takes this long unless it never happens.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A process of its own, as far as sockets can tell: when dropped, everything of it is gone at once.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Process {
    pub(crate) fn start(services: Services) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), services)
    }

    pub(crate) fn start_at(address: SocketAddr, services: Services) -> Self {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        // The test's own runtime is not to be blocked on another.
        let listening = std::thread::scope(|scope| {
            let bound = scope.spawn(|| runtime.block_on(TcpListener::bind(address)));
            bound.join().unwrap().unwrap()
        });
        let address = listening.local_addr().unwrap();
        let entered = runtime.enter();
        let incoming = TcpIncoming::from(listening);
        drop(entered);
        let serving = server()
            .add_routes(services.into_routes())
            .serve_with_incoming(incoming);
        drop(runtime.spawn(serving));
        Self {
            address,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        Peer::at(&self.address.to_string(), None).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // Until its listener is closed, the kernel goes on to accept.
        while TcpStream::connect(self.address).is_ok() {
            std::thread::yield_now();
        }
    }
}

/// Both origins of what `stub` is.
pub(crate) struct Origins<T: ?Sized> {
    pub(crate) all: [Arc<T>; 2],
    _process: Process,
}

impl<T: ?Sized> Origins<T> {
    pub(crate) fn of(
        stub: Arc<T>,
        serve: impl FnOnce(Services, Arc<T>) -> Services,
        remote: impl FnOnce(Peer) -> Arc<T>,
    ) -> Self {
        let process = Process::start(serve(Services::default(), stub.clone()));
        Self {
            all: [stub, remote(process.peer())],
            _process: process,
        }
    }
}

/// What a stub says that has nothing more to say.
pub(crate) const TOO_LATE: &str = "an earlier call came too late";
/// How often a value is tried of which a call came too late.
const TRIES: u32 = 20;

/// Tries `check` with many values. A lookup has 250 ms, which a busy machine may need for something else: a value of
/// which a call came too late is tried again.
pub(crate) fn for_many<S: Strategy<Value: Clone>>(
    values: S,
    check: impl AsyncFn(S::Value) -> TestCaseResult,
) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    // Each value is a call over a socket.
    let mut runner = TestRunner::new(Config {
        cases: 64,
        failure_persistence: None,
        ..Config::default()
    });
    let patiently = async |value: S::Value| {
        let mut tries = 1;
        loop {
            match check(value.clone()).await {
                Err(failed) if tries < TRIES && is_late(&failed) => tries += 1,
                checked => return checked,
            }
        }
    };
    let checked = runner.run(&values, |value| runtime.block_on(patiently(value)));
    checked.unwrap();
}

fn is_late(failed: &TestCaseError) -> bool {
    match failed {
        TestCaseError::Fail(why) => {
            let why = why.message();
            why.contains("DeadlineExceeded") || why.contains(TOO_LATE)
        }
        TestCaseError::Reject(_) => false,
    }
}
