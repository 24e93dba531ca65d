//! Where processes listen: each in a network namespace of its own where that is permitted, so that it can be cut off;
//! else all on the loopback.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// Namespaces joined by one bridge; taken down when dropped.
pub(crate) struct Network {
    name: String,
    /// None where namespaces are not permitted.
    places: Option<Vec<Place>>,
    given: usize,
}

/// One namespace.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) ip: Ipv4Addr,
    /// The namespace; none where it is the test's own.
    namespace: Option<String>,
}

impl Network {
    /// A network of so many places. Says so where it has only one.
    pub(crate) fn of(count: u8) -> Self {
        let number = std::process::id();
        let mut network = Self {
            name: format!("rw{}", number % 100_000),
            places: None,
            given: 0,
        };
        let octets = number.to_be_bytes();
        let ip = |host| Ipv4Addr::new(10, octets[2] | 0x80, octets[3], host);
        match network.build(ip, count) {
            Ok(places) => network.places = Some(places),
            Err(why) => {
                eprintln!("SKIPPED: nobody is cut off, because there are no namespaces: {why}");
            }
        }
        network
    }

    fn build(&self, ip: impl Fn(u8) -> Ipv4Addr, count: u8) -> Result<Vec<Place>, String> {
        let bridge = &self.name;
        run(&format!("ip link add {bridge} type bridge"))?;
        run(&format!("ip addr add {}/24 dev {bridge}", ip(1)))?;
        run(&format!("ip link set {bridge} up"))?;
        let place = |number: u8| {
            let (namespace, ip) = (format!("{bridge}n{number}"), ip(number + 2));
            let (near, far) = (format!("{bridge}a{number}"), format!("{bridge}b{number}"));
            run(&format!("ip netns add {namespace}"))?;
            run(&format!(
                "ip link add {near} type veth peer name {far} netns {namespace}"
            ))?;
            run(&format!("ip link set {near} master {bridge} up"))?;
            run(&format!("ip -n {namespace} addr add {ip}/24 dev {far}"))?;
            run(&format!("ip -n {namespace} link set {far} up"))?;
            run(&format!("ip -n {namespace} link set lo up"))?;
            Ok(Place {
                ip,
                namespace: Some(namespace),
            })
        };
        (0..count).map(place).collect()
    }

    /// A place that nobody has been given.
    pub(crate) fn place(&mut self) -> Place {
        let own = || Place {
            ip: Ipv4Addr::LOCALHOST,
            namespace: None,
        };
        let place = self
            .places
            .as_ref()
            .map_or_else(own, |it| it[self.given].clone());
        self.given += 1;
        place
    }

    /// Whether anybody can be cut off.
    pub(crate) const fn cuts(&self) -> bool {
        self.places.is_some()
    }
}

impl Place {
    /// The program, to be run there.
    pub(crate) fn command(&self, program: &str) -> Vec<String> {
        let inside = self.namespace.iter();
        let inside = inside.flat_map(|it| ["ip", "netns", "exec", it].map(str::to_owned));
        inside.chain([program.to_owned()]).collect()
    }

    /// Nothing comes or goes, and nobody is told.
    pub(crate) fn cut(&self, cut: bool) {
        let namespace = self.namespace.as_ref().unwrap();
        let (bridge, number) = namespace.rsplit_once('n').unwrap();
        let state = if cut { "down" } else { "up" };
        run(&format!("ip link set {bridge}a{number} {state}")).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let bridge = &self.name;
        for number in 0..self.places.as_ref().map_or(0, Vec::len) {
            // What is not there need not be taken away.
            let _ = run(&format!("ip netns del {bridge}n{number}"));
        }
        let _ = run(&format!("ip link del {bridge}"));
    }
}

fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    let ran = program.args(words).stdin(Stdio::null()).output();
    let output = ran.map_err(|why| format!("{command}: {why}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}
