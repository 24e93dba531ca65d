//! A real NATS server of a test's own, which ends with the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;

/// How long a server may take to begin.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where to look for servers, separated by spaces; set by `tests/run`.
const SERVERS: &str = "TEST_NATS_SERVERS";

/// Ends the server when its input ends, which it does with this process, however that ends. Says the id of the
/// server's process first.
const GUARD: &str =
    r#""$0" "$@" & server=$!; echo "$server"; cat >/dev/null; kill -9 "$server"; wait 2>/dev/null"#;

/// A server, its files and its port.
pub(crate) struct Server {
    program: PathBuf,
    folder: TempDir,
    port: u16,
    options: Vec<String>,
    process: Option<Process>,
}

struct Process {
    guard: Child,
    input: Option<ChildStdin>,
    id: String,
}

/// The programs to test with, the first by default.
pub(crate) fn programs() -> Vec<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "tests have no settings")]
    let named = std::env::var(SERVERS).unwrap_or_default();
    let mut programs: Vec<PathBuf> = named.split_whitespace().map(PathBuf::from).collect();
    if programs.is_empty() {
        programs.push("nats-server".into());
    }
    programs
}

impl Server {
    /// A server with JetStream.
    pub(crate) async fn start(program: &Path) -> Self {
        Self::start_with(program, &["-js"]).await
    }

    /// A server with other options.
    pub(crate) async fn start_with(program: &Path, options: &[&str]) -> Self {
        let mut server = Self {
            program: program.to_owned(),
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            options: options.iter().map(|&it| it.to_owned()).collect(),
            process: None,
        };
        server.restart().await;
        server
    }

    /// Servers that are one cluster.
    pub(crate) async fn start_cluster(program: &Path) -> [Self; 3] {
        let ports = [free_port(), free_port(), free_port()];
        let routes = ports.map(|it| format!("nats://127.0.0.1:{it}")).join(",");
        let start = async |number: usize| {
            let name = format!("n{number}");
            let own = format!("nats://127.0.0.1:{}", ports[number]);
            let cluster = [
                "--cluster_name",
                "c",
                "--cluster",
                &own,
                "--routes",
                &routes,
            ];
            let options = [&["-js", "-n", &name][..], &cluster].concat();
            Self::start_with(program, &options).await
        };
        [start(0).await, start(1).await, start(2).await]
    }

    /// Begins again with the same files at the same port.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let mut command = Command::new("sh");
        command
            .args(["-c", GUARD])
            .arg(&self.program)
            .args(["-a", "127.0.0.1", "-p", &self.port.to_string()])
            .arg("-sd")
            .arg(self.store())
            .arg("-l")
            .arg(self.folder.path().join("log"))
            .args(&self.options)
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut guard = command.spawn().unwrap();
        let input = guard.stdin.take();
        let mut id = String::new();
        let said = guard.stdout.take().unwrap();
        BufReader::new(said).read_line(&mut id).unwrap();
        let id = id.trim().to_owned();
        self.process = Some(Process { guard, input, id });
        let begun = async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, begun).await.is_err() {
            let log = std::fs::read_to_string(self.folder.path().join("log"));
            panic!(
                "{} did not begin: install nats-server (on Debian and Ubuntu: apt-get install nats-server), or \
                 name one or more servers in {SERVERS}\n{}",
                self.program.display(),
                log.unwrap_or_default()
            );
        }
    }

    /// Kills it at once, as `kill -9` does. Its files stay.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.input.take());
            process.guard.wait().unwrap();
        }
    }

    /// Stops it without ending it, until [`Self::thaw`].
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What a server that is not running has stored.
    pub(crate) fn copy_store(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&self.store(), copy.path());
        copy
    }

    /// Gives a server that is not running what was stored before.
    pub(crate) fn replace_store(&self, copy: TempDir) {
        std::fs::remove_dir_all(self.store()).unwrap();
        copy_folder(copy.path(), &self.store());
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn signal(&self, name: &str) {
        let process = self.process.as_ref().unwrap();
        let done = Command::new("kill")
            .args(["-s", name, &process.id])
            .status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let copy = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &copy);
        } else {
            std::fs::copy(entry.path(), copy).unwrap();
        }
    }
}
