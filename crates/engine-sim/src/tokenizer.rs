//! Text to tokens and back, without a model.
//!
//! Ids below 16 are markers of the chat template. The next 32,768 are words of three syllables behind a
//! space, such as ` bakiro`: what the engine answers with. Everything else is cut into pieces, each a single
//! whitespace character, or at most 12 other characters with the single space before them, and a piece's id
//! is a hash of it. Decoding gives markers no text, words their word, and other ids their number, ` #51234`,
//! which encodes to the same id: `encode(decode(ids)) = ids` for all ids but markers.
//!
//! A piece never reaches over a space from the left, so text followed by an answer encodes to the text's
//! tokens and the answer's.

use xxhash_rust::xxh3::xxh3_64;

const FIRST_WORD: u32 = 16;
const WORDS: u32 = 32 * 32 * 32;
const FIRST_PIECE: u32 = FIRST_WORD + WORDS;
/// How many ids text can encode to.
const VOCABULARY: u32 = 1 << 17;
const MAX_PIECE_CHARS: usize = 12;
const CONSONANTS: [char; 8] = ['b', 'd', 'f', 'k', 'l', 'm', 'r', 't'];
const VOWELS: [char; 4] = ['a', 'e', 'i', 'o'];

/// Ends every message, and an answer that is not cut short.
pub(crate) const END: u32 = 1;
const TOOLS: u32 = 2;
const SYSTEM: u32 = 3;
const USER: u32 = 4;
const ASSISTANT: u32 = 5;
const TOOL: u32 = 6;
const OTHER_ROLE: u32 = 7;

/// The `at`-th word's id.
pub(crate) const fn word(at: u64) -> u32 {
    FIRST_WORD + (at % WORDS as u64) as u32
}

/// One message of a chat, as the template writes it.
pub(crate) struct Message<'a> {
    pub(crate) role: &'a str,
    pub(crate) content: &'a str,
}

/// The prompt of a chat: `tools` as written, then each message between its role's marker and [`END`], then
/// the marker that asks for an answer.
pub(crate) fn encode_chat<'a>(
    tools: Option<&str>,
    messages: impl IntoIterator<Item = Message<'a>>,
    ask: bool,
) -> Vec<u32> {
    let mut tokens = Vec::new();
    if let Some(tools) = tools {
        tokens.push(TOOLS);
        encode_content(tools, &mut tokens);
        tokens.push(END);
    }
    for message in messages {
        match message.role {
            "system" | "developer" => tokens.push(SYSTEM),
            "user" => tokens.push(USER),
            "assistant" => tokens.push(ASSISTANT),
            "tool" | "function" => tokens.push(TOOL),
            other => {
                tokens.push(OTHER_ROLE);
                encode_into(other, &mut tokens);
            }
        }
        encode_content(message.content, &mut tokens);
        tokens.push(END);
    }
    if ask {
        tokens.push(ASSISTANT);
    }
    tokens
}

/// An answer is written without its first space, and read back with it.
fn encode_content(content: &str, tokens: &mut Vec<u32>) {
    if content.is_empty() {
        return;
    }
    let (first, rest) = split_first_piece(content);
    if first.starts_with(char::is_whitespace) {
        tokens.push(id_of(" "));
        encode_into(content, tokens);
    } else {
        tokens.push(id_of(&format!(" {first}")));
        encode_into(rest, tokens);
    }
}

/// The tokens of `text`.
pub(crate) fn encode(text: &str) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(text.len() / 4);
    encode_into(text, &mut tokens);
    tokens
}

fn encode_into(mut text: &str, tokens: &mut Vec<u32>) {
    while !text.is_empty() {
        let (piece, rest) = split_first_piece(text);
        tokens.push(id_of(piece));
        text = rest;
    }
}

fn split_first_piece(text: &str) -> (&str, &str) {
    let body = match text.strip_prefix(' ') {
        Some(body) if body.starts_with(|it: char| !it.is_whitespace()) => body,
        _ => text,
    };
    let lead = text.len() - body.len();
    let piece: usize = body
        .chars()
        .take(MAX_PIECE_CHARS)
        .take_while(|it| !it.is_whitespace())
        .map(char::len_utf8)
        .sum();
    let whitespace = || body.chars().next().map_or(0, char::len_utf8);
    let length = if piece == 0 { whitespace() } else { piece };
    text.split_at(lead + length)
}

fn id_of(piece: &str) -> u32 {
    let behind_space = piece.strip_prefix(' ').unwrap_or_default();
    if let Some(word) = parse_word(behind_space) {
        return word;
    }
    let number = behind_space.strip_prefix('#').unwrap_or_default();
    match number.parse::<u32>() {
        // Only as it is written: neither markers nor words have a number, nor is +7 or 007 one.
        Ok(id) if id >= FIRST_PIECE && id.to_string() == number => id,
        _ => {
            let spread = u64::from(VOCABULARY - FIRST_PIECE);
            FIRST_PIECE + (xxh3_64(piece.as_bytes()) % spread) as u32
        }
    }
}

fn parse_word(text: &str) -> Option<u32> {
    if text.len() != 6 {
        return None;
    }
    let mut chars = text.chars();
    let mut at = 0;
    for _ in 0..3 {
        let (consonant, vowel) = (chars.next()?, chars.next()?);
        let consonant = CONSONANTS.iter().position(|it| *it == consonant)?;
        let vowel = VOWELS.iter().position(|it| *it == vowel)?;
        at = at * 32 + (consonant * 4 + vowel) as u32;
    }
    Some(FIRST_WORD + at)
}

/// Appends the text of one token.
pub(crate) fn decode_into(token: u32, text: &mut String) {
    if token < FIRST_WORD {
        return;
    }
    text.push(' ');
    if token >= FIRST_PIECE {
        text.push('#');
        text.push_str(&token.to_string());
        return;
    }
    let at = token - FIRST_WORD;
    for syllable in [at / 1024, at / 32 % 32, at % 32] {
        text.push(CONSONANTS[(syllable / 4) as usize]);
        text.push(VOWELS[(syllable % 4) as usize]);
    }
}

/// The text of `tokens`.
pub(crate) fn decode(tokens: &[u32]) -> String {
    let mut text = String::with_capacity(tokens.len() * 8);
    for token in tokens {
        decode_into(*token, &mut text);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message<'a>(role: &'a str, content: &'a str) -> Message<'a> {
        Message { role, content }
    }

    #[test]
    fn words_are_pronounceable_and_in_range() {
        assert_eq!(decode(&[word(0), word(32_767)]), " bababa tototo");
        assert_eq!(word(32_768), word(0));
        assert!(encode("any text\u{a0}\n").iter().all(|it| *it < VOCABULARY));
    }

    #[test]
    fn a_long_run_without_spaces_is_many_tokens() {
        assert_eq!(encode(&"x".repeat(100)).len(), 9);
    }

    #[test]
    fn text_cannot_write_markers() {
        assert!(encode(" #4 #+40000").iter().all(|it| *it >= FIRST_PIECE));
    }

    proptest! {
        #[test]
        fn ids_survive_the_way_through_text(ids in proptest::collection::vec(FIRST_WORD.., 0..50)) {
            prop_assert_eq!(encode(&decode(&ids)), ids);
        }

        #[test]
        fn an_answer_after_any_text_keeps_the_tokens_of_both(
            text in "(\\PC|[ \n\t]){0,40}",
            answer in proptest::collection::vec(any::<u64>().prop_map(word), 0..20),
        ) {
            let mut expected = encode(&text);
            expected.extend(&answer);
            prop_assert_eq!(encode(&(text + &decode(&answer))), expected);
        }

        #[test]
        fn the_next_turn_extends_the_prompt_and_the_answer(
            question in "(\\PC|[ \n]){0,40}",
            answer in proptest::collection::vec(any::<u64>().prop_map(word), 0..20),
        ) {
            let first = encode_chat(Some("[]"), [message("user", &question)], true);
            let text = decode(&answer);
            let content = text.trim_start_matches(' ');
            let next = encode_chat(
                Some("[]"),
                [message("user", &question), message("assistant", content), message("user", "more")],
                true,
            );
            let mut expected = first;
            expected.extend(&answer);
            expected.push(END);
            prop_assert_eq!(&next[..expected.len()], &expected[..]);
        }
    }
}
