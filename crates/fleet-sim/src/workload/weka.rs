//! Traces of agents in Weka's format, as AgentX publishes them: a JSON object a line, each a tree of sessions.
//!
//! Source: `semianalysisai/cc-traces-weka-*` and callanjfox/kv-cache-tester: `{"id", "block_size", "hash_id_scope":
//! "local", "requests": [{"type": "n" or "s", "t", "in", "out", "hash_ids", "api_time"}, {"type": "subagent", "t",
//! "requests": [...]}]}`, times in seconds. A hash id means the same block in one tree only. Some write the times of
//! sub-agents from their own start: only the pauses between them are used here, and the start is the marker's.

use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use domain::{BlockHash, BlockSize, Tokens};
use serde::Deserialize;

use super::script::blocks_of;
use super::{Begins, Content, Decode, Session, Turn, Workload};
use crate::random::Random;
use crate::trace::{MAX_TOKENS, TraceError, bounded_lines};

/// The longest pause taken, in seconds: a day.
const MAX_PAUSE: f64 = 86_400.0;

#[derive(Deserialize)]
struct Tree {
    block_size: u32,
    #[serde(default)]
    hash_id_scope: Option<String>,
    requests: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Item {
    #[serde(rename = "n", alias = "s")]
    Request(Request),
    #[serde(rename = "subagent")]
    SubAgent { t: f64, requests: Vec<Item> },
}

#[derive(Deserialize)]
struct Request {
    t: f64,
    #[serde(rename = "in")]
    isl: u64,
    #[serde(rename = "out")]
    osl: u64,
    hash_ids: Vec<u64>,
    #[serde(default)]
    api_time: Option<f64>,
}

impl Request {
    fn end(&self) -> f64 {
        self.t + self.api_time.unwrap_or(0.0).max(0.0)
    }

    /// The ids of its full blocks; what is beyond the known ones is content that nobody else has.
    fn full(&self, block_size: BlockSize) -> &[u64] {
        let count = blocks_of(self.isl, block_size);
        &self.hash_ids[..self.hash_ids.len().min(count)]
    }
}

/// What is read of a file.
struct Reading {
    block_size: Option<BlockSize>,
    decode: Decode,
    sessions: Vec<Session>,
}

/// Where an agent stands.
struct Agent {
    parent: Option<usize>,
    begins: Begins,
}

impl Workload {
    /// Reads at most `limit` trees, of which `lanes` are live at a time: each later one begins when the main agent of
    /// the one `lanes` before it has ended. Blank lines are skipped, unknown fields ignored.
    pub fn of_weka(
        name: &str,
        lines: impl BufRead,
        lanes: usize,
        limit: Option<usize>,
        decode: Decode,
    ) -> Result<Self, TraceError> {
        let mut reading = Reading {
            block_size: None,
            decode,
            sessions: Vec::new(),
        };
        let mut mains: Vec<usize> = Vec::new();
        for (index, text) in bounded_lines(lines).enumerate() {
            if limit.is_some_and(|limit| mains.len() >= limit) {
                break;
            }
            let line = index + 1;
            let text = text.map_err(|cause| cause.at(line))?;
            if text.trim().is_empty() {
                continue;
            }
            let before = mains.len().checked_sub(lanes.max(1));
            let begins = match before.map(|it| mains[it]) {
                None => Begins::At(Duration::ZERO),
                Some(session) => Begins::After {
                    session,
                    turn: reading.sessions[session].turns.len() - 1,
                    pause: Duration::ZERO,
                },
            };
            mains.push(reading.sessions.len());
            let tree = reading.tree(&text, begins, mains.len() as u64);
            tree.map_err(|why| TraceError::Line { line, why })?;
        }
        let block_size = reading.block_size.ok_or(TraceError::Empty)?;
        Ok(Self {
            name: name.to_owned(),
            block_size,
            sessions: reading.sessions,
        })
    }
}

impl Reading {
    fn tree(&mut self, text: &str, begins: Begins, number: u64) -> Result<(), String> {
        let tree: Tree = serde_json::from_str(text).map_err(|why| match why.is_eof() {
            true => format!("{why}: write each tree on a line of its own, as `jq -c .` does"),
            false => why.to_string(),
        })?;
        if let Some(scope) = tree.hash_id_scope.filter(|it| it != "local") {
            return Err(format!(
                "hash_id_scope is {scope:?}, and only \"local\" is known"
            ));
        }
        let block_size = BlockSize::new(tree.block_size)
            .map_err(|why| format!("block_size {} {why}", tree.block_size))?;
        let first = *self.block_size.get_or_insert(block_size);
        if first != block_size {
            let (first, this) = (first.get(), block_size.get());
            return Err(format!(
                "block_size {this} is not that of the trees before, {first}"
            ));
        }
        let salt = Random::stream(number, 0).next_u64();
        let main = Agent {
            parent: None,
            begins,
        };
        match self.agent(&tree.requests, main, salt)? {
            Some(_) => Ok(()),
            None => Err("the tree has no request of its main agent".to_owned()),
        }
    }

    /// Adds an agent and those it starts; its place, or none if it asks nothing itself.
    fn agent(&mut self, items: &[Item], agent: Agent, salt: u64) -> Result<Option<usize>, String> {
        let own = items.iter().filter_map(|it| match it {
            Item::Request(request) => Some(request),
            Item::SubAgent { .. } => None,
        });
        let own: Vec<&Request> = own.collect();
        if own.is_empty() {
            return Ok(None);
        }
        let place = self.sessions.len();
        self.sessions.push(Session {
            conversation: u32::try_from(place).ok(),
            parent: agent.parent,
            tenant: 0,
            begins: agent.begins,
            turns: self.turns(&own, salt)?,
        });
        let mut sent = 0_usize;
        for item in items {
            match item {
                Item::Request(_) => sent += 1,
                Item::SubAgent { t, requests } => {
                    let begins = match sent.checked_sub(1) {
                        None => agent.begins,
                        Some(turn) => Begins::After {
                            session: place,
                            turn,
                            pause: pause(own[turn].end(), *t)?,
                        },
                    };
                    let child = Agent {
                        parent: Some(place),
                        begins,
                    };
                    self.agent(requests, child, salt)?;
                }
            }
        }
        Ok(Some(place))
    }

    fn turns(&self, requests: &[&Request], salt: u64) -> Result<Vec<Turn>, String> {
        let block_size = self.block_size.expect("set by the tree");
        let mut turns = Vec::with_capacity(requests.len());
        let mut gap = Duration::ZERO;
        let mut rest = requests;
        while !rest.is_empty() {
            let mut grows = rest.windows(2);
            let ends =
                grows.position(|it| !it[1].full(block_size).starts_with(it[0].full(block_size)));
            let (context, later) = rest.split_at(ends.map_or(rest.len(), |it| it + 1));
            let longest = context.last().expect("at least one is before the end");
            let salted = |id: &u64| BlockHash::new(Random::stream(salt, *id).next_u64());
            let blocks = longest.full(block_size).iter().map(salted).collect();
            let content = Arc::new(Content::new(blocks));
            for (at, request) in context.iter().enumerate() {
                let next = context[at + 1..].iter().chain(later).next();
                let (turn, after) = self.turn(request, &content, gap)?;
                gap = after;
                if let Some(next) = next {
                    gap += pause(request.end(), next.t)?;
                }
                turns.push(turn);
            }
            rest = later;
        }
        Ok(turns)
    }

    /// A turn, and how long after it is answered here the answer ends.
    fn turn(
        &self,
        request: &Request,
        content: &Arc<Content>,
        gap: Duration,
    ) -> Result<(Turn, Duration), String> {
        for (name, tokens, least) in [("in", request.isl, 1), ("out", request.osl, 0)] {
            if !(least..=MAX_TOKENS).contains(&tokens) {
                return Err(format!(
                    "{name} {tokens} is not between {least} and {MAX_TOKENS}"
                ));
            }
        }
        let (osl, after) = self.decode.split(request.osl.max(1));
        let turn = Turn {
            content: Arc::clone(content),
            isl: Tokens::new(request.isl),
            osl: Tokens::new(osl),
            // Nobody knows what the answers were.
            kept: Tokens::new(request.isl),
            gap,
        };
        Ok((turn, after))
    }
}

/// From the end of one request to the start of what follows; none where they overlap.
fn pause(end: f64, start: f64) -> Result<Duration, String> {
    let pause = (start - end).max(0.0);
    match pause.is_finite() {
        true => Ok(Duration::from_secs_f64(pause.min(MAX_PAUSE))),
        false => Err(format!("t {start} is no time")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{Begins, Decode, TraceError, Workload};

    const TREE: &str = r#"{"id":"a","models":["m"],"block_size":4,"hash_id_scope":"local","tool_tokens":1,"requests":[
        {"t":0.0,"type":"n","model":"m","in":9,"out":5,"hash_ids":[1,2,3],"api_time":2.0,"stop":"tool_use"},
        {"t":2.5,"type":"subagent","agent_id":"x","requests":[
            {"t":0.0,"type":"s","in":8,"out":1,"hash_ids":[1,9],"api_time":1.0},
            {"t":4.0,"type":"n","in":12,"out":1,"hash_ids":[1,9,10],"api_time":1.0}]},
        {"t":10.0,"type":"s","in":17,"out":3,"hash_ids":[1,2,4,5,6],"api_time":1.0},
        {"t":10.5,"type":"n","in":8,"out":0,"hash_ids":[7,8]}]}"#;

    fn read(text: &str) -> Result<Workload, TraceError> {
        Workload::of_weka("trees", text.as_bytes(), 1, None, Decode::Here)
    }

    #[test]
    fn a_tree_is_a_session_with_its_sub_agents() {
        let tree = TREE.replace('\n', "");

        let workload = read(&format!("{tree}\n\n{tree}\n")).unwrap();

        let [main, sub, next, _] = &workload.sessions[..] else {
            panic!("{workload:?}");
        };
        let gaps: Vec<f64> = main.turns.iter().map(|it| it.gap.as_secs_f64()).collect();
        assert_eq!(gaps, [0.0, 8.0, 0.0]);
        let osl: Vec<u64> = main.turns.iter().map(|it| it.osl.get()).collect();
        assert_eq!(osl, [5, 3, 1]);
        let prompt = |turn: usize| main.turns[turn].prompt(workload.block_size);
        assert_eq!(prompt(1)[..2], *prompt(0));
        assert_ne!(prompt(2)[0], prompt(0)[0]);
        assert_eq!(sub.parent, Some(0));
        let pause = Duration::from_millis(500);
        let (session, turn) = (0, 0);
        assert_eq!(
            sub.begins,
            Begins::After {
                session,
                turn,
                pause
            }
        );
        assert_eq!(sub.turns[1].gap, Duration::from_secs(3));
        assert_eq!(sub.turns[0].content.chain()[0], prompt(0)[0]);
        let (turn, pause) = (2, Duration::ZERO);
        assert_eq!(
            next.begins,
            Begins::After {
                session,
                turn,
                pause
            }
        );
        assert_ne!(next.turns[0].content.chain()[0], prompt(0)[0]);
    }

    #[test]
    fn an_error_names_its_line_and_what_is_wrong() {
        let good = TREE.replace('\n', "");
        for (bad, says) in [
            (TREE.lines().next().unwrap_or_default().to_owned(), "jq -c"),
            (good.replace("local", "global"), "only \"local\" is known"),
            (
                good.replace(r#""block_size":4"#, r#""block_size":0"#),
                "block_size 0",
            ),
            (
                good.replace(r#""block_size":4"#, r#""block_size":8"#),
                "not that of the trees before, 4",
            ),
            (
                good.replace(r#""type":"s""#, r#""type":"z""#),
                "unknown variant `z`",
            ),
            (
                good.replace(r#""in":9"#, r#""in":0"#),
                "in 0 is not between 1 and",
            ),
            (good.replace(r#""t":10.0"#, r#""t":null"#), "null"),
            (r#"{"block_size":4,"requests":[]}"#.to_owned(), "no request"),
        ] {
            let error = read(&format!("{good}\n{bad}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("line 2: ") && error.contains(says),
                "{error}"
            );
        }
        assert!(matches!(read("\n"), Err(TraceError::Empty)));
    }
}
