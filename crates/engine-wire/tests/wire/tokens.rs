//! Asking each engine for tokens in its own words.

use domain::EngineKind;
use engine_wire::{Ask, Asked, TokenizeError, ask_tokens};
use serde_json::{Value, json};

fn ask(engine: EngineKind, request: &Value) -> Result<(Ask, Value), TokenizeError> {
    let ask = ask_tokens(engine, &serde_json::to_vec(request).unwrap())?;
    let body = serde_json::from_slice(&ask.body).unwrap();
    Ok((ask, body))
}

fn chat() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi there"}], "stream": true,
        "tool_choice": "auto", "reasoning_effort": "low"})
}

#[test]
fn vllm_and_sglang_are_asked_once() {
    let request = chat();
    for (engine, body) in [
        (
            EngineKind::Vllm,
            json!({"model": "m", "messages": request["messages"]}),
        ),
        (
            EngineKind::TensorRtLlm,
            json!({"model": "m", "messages": request["messages"]}),
        ),
        (
            EngineKind::Sglang,
            json!({"model": "m", "messages": request["messages"], "tool_choice": "auto",
                "reasoning_effort": "low"}),
        ),
    ] {
        let (ask, asked) = ask(engine, &request).unwrap();
        assert_eq!((ask.path, asked), ("/tokenize", body));
        // SGLang does not always know how long a context may be.
        let answer = ask.read(br#"{"tokens":[5,6],"count":2,"max_model_len":-1}"#);
        assert_eq!(answer.unwrap(), Asked::Tokens(vec![5, 6]));
        assert!(ask.read(br#"{"tokens":[[5],[6]],"count":[1,1]}"#).is_err());
    }
    let (ask, asked) = ask(EngineKind::Sglang, &json!({"prompt": "a", "n": 2})).unwrap();
    assert_eq!((ask.path, asked), ("/tokenize", json!({"prompt": "a"})));
}

#[test]
fn llama_cpp_is_asked_for_the_text_of_a_chat_and_then_for_its_tokens() {
    let (first, body) = ask(EngineKind::LlamaCpp, &chat()).unwrap();
    assert_eq!((first.path, body), ("/apply-template", chat()));
    let answer = first.read(br#"{"prompt":"<|im_start|>user\nhi \"there\""}"#);
    let Ok(Asked::Again(second)) = answer else {
        panic!("{answer:?}");
    };
    let body: Value = serde_json::from_slice(&second.body).unwrap();
    let text = json!({"content": "<|im_start|>user\nhi \"there\"", "add_special": true, "parse_special": true});
    assert_eq!((second.path, body), ("/tokenize", text));
    let answer = second.read(br#"{"tokens":[2,20073]}"#).unwrap();
    assert_eq!(answer, Asked::Tokens(vec![2, 20073]));

    let (only, body) = ask(EngineKind::LlamaCpp, &json!({"prompt": "once"})).unwrap();
    let text = json!({"content": "once", "add_special": true, "parse_special": true});
    assert_eq!((only.path, body), ("/tokenize", text));
}

#[test]
fn what_has_no_text_is_not_asked_for() {
    for engine in [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaCpp] {
        for request in [
            json!({"prompt": [1, 2]}),
            json!({"prompt": ["a", "b"]}),
            json!({}),
        ] {
            let refused = ask(engine, &request);
            assert!(matches!(refused, Err(TokenizeError::NoText)), "{request}");
        }
    }
}
