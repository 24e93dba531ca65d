//! Traces as workloads (W3): every request arrives by the clock, whether the one before it is answered or not.

use std::sync::Arc;
use std::time::Duration;

use domain::Tokens;

use super::agents::Decode;
use super::{Begins, Content, Session, Turn, Workload};
use crate::trace::Trace;

impl Workload {
    /// The requests of a trace: each a session of one turn, which names the conversation that the trace has it in.
    pub fn of_trace(name: &str, trace: &Trace, decode: Decode) -> Self {
        let sessions = trace.requests.iter().map(|it| Session {
            conversation: it.session,
            parent: None,
            tenant: 0,
            begins: Begins::At(it.at),
            turns: vec![Turn {
                content: Arc::new(Content::new(it.blocks.clone())),
                isl: it.isl,
                osl: Tokens::new(decode.split(it.osl.get()).0),
                // Nobody knows what the answers were.
                kept: it.isl,
                gap: Duration::ZERO,
            }],
        });
        Self {
            name: name.to_owned(),
            block_size: trace.block_size,
            sessions: sessions.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use domain::BlockSize;

    use crate::{Begins, Decode, Trace, Workload};

    #[test]
    fn rows_of_one_session_name_one_conversation_and_arrive_by_the_clock() {
        let row = |at: u32, session: &str, ids: &str| {
            format!(
                r#"{{"timestamp":{at},"input_length":9,"output_length":7,"hash_ids":[{ids}]{session}}}"#
            )
        };
        let rows = [
            row(0, r#","session_id":"a""#, "1,2,3"),
            row(1000, r#","session_id":"b""#, "4,5,6"),
            row(2000, r#","session_id":"a""#, "1,2,7"),
            row(3000, "", "1,8"),
        ];
        let block_size = BlockSize::new(4).expect("a size of engines");
        let trace = Trace::read(rows.join("\n").as_bytes(), block_size, None).unwrap();

        let here = Workload::of_trace("rows", &trace, Decode::Here);
        let elsewhere = Workload::of_trace("rows", &trace, Decode::ELSEWHERE);

        let conversations: Vec<_> = here.sessions.iter().map(|it| it.conversation).collect();
        assert_eq!(conversations, [Some(0), Some(1), Some(0), None]);
        let second = Duration::from_secs(2);
        assert_eq!(here.sessions[2].begins, Begins::At(second));
        let turn = &here.sessions[2].turns[0];
        assert_eq!(turn.osl.get(), 7);
        assert_eq!(elsewhere.sessions[2].turns[0].osl.get(), 1);
        let first = &here.sessions[0].turns[0];
        assert_eq!(turn.prompt(block_size).len(), 2);
        assert_eq!(turn.prompt(block_size), first.prompt(block_size));
    }
}
