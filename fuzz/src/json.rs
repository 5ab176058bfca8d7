//! A mutator for documents of JSON: it changes the tree, so that most of what comes out is still
//! one that is read.

use libfuzzer_sys::fuzzer_mutate;
use serde_json::{Number, Value};

/// Texts that parsers of names, numbers, addresses and regexes stumble over.
const TEXTS: [&str; 20] = [
    "",
    " ",
    ".",
    "..",
    "/",
    "a/b",
    "a\nb",
    "\0",
    "\u{202e}",
    "é",
    "lo",
    "=",
    "^",
    "0",
    "-1",
    "4294967295",
    "::",
    "0.0.0.0/0",
    "(",
    "0000:00:00.0",
];

/// A sequence of numbers that a seed decides (xorshift64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides.max(1) as u64) as usize
    }
}

/// Changes one to four values of a document; what is no JSON, and now and then what is, is left to
/// libFuzzer.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut dice = Dice(u64::from(seed) << 1 | 1);
    let document = serde_json::from_slice::<Value>(&data[..size])
        .ok()
        .filter(|_| dice.roll(5) > 0);
    let Some(mut document) = document else {
        return fuzzer_mutate(data, size, max_size);
    };
    for _ in 0..=dice.roll(4) {
        let (from, to) = (dice.roll(count(&document)), dice.roll(count(&document)));
        let other = nth(&mut document, &mut { from })
            .cloned()
            .unwrap_or_default();
        if let Some(value) = nth(&mut document, &mut { to }) {
            change(value, other, &mut dice);
        }
        // What doubles with each change would soon be too large for anybody.
        if document.to_string().len() > max_size {
            break;
        }
    }
    let text = document.to_string();
    match data
        .get_mut(..text.len())
        .filter(|_| text.len() <= max_size)
    {
        Some(room) => {
            room.copy_from_slice(text.as_bytes());
            text.len()
        }
        None => fuzzer_mutate(data, size, max_size),
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The value of that number, in the order of the text.
fn nth<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|v| nth(v, number)),
        Value::Object(map) => map.values_mut().find_map(|v| nth(v, number)),
        _ => None,
    }
}

fn change(value: &mut Value, other: Value, dice: &mut Dice) {
    match (dice.roll(6), &mut *value) {
        (0, _) => *value = other,
        (1, _) => *value = scalar(dice),
        (_, Value::Array(items)) => change_list(items, other, dice),
        (_, Value::Object(map)) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            let key = keys.get(dice.roll(keys.len())).cloned().unwrap_or_default();
            match dice.roll(3) {
                0 => drop(map.shift_remove(&key)),
                1 => drop(map.insert(key, other)),
                _ => drop(map.insert(format!("{key}{}", dice.roll(10)), other)),
            }
        }
        (_, Value::String(text)) => change_text(text, other, dice),
        (_, Value::Number(number)) => *number = change_number(number, dice),
        (_, Value::Bool(truth)) => *truth = !*truth,
        (_, Value::Null) => *value = other,
    }
}

fn change_list(items: &mut Vec<Value>, other: Value, dice: &mut Dice) {
    let (one, two) = (dice.roll(items.len()), dice.roll(items.len()));
    match (dice.roll(5), items.get(one).cloned()) {
        (0, Some(_)) => drop(items.remove(one)),
        (1, Some(_)) => items.swap(one, two),
        (2, Some(item)) => items.insert(two, item),
        (3, Some(item)) if count(&item) < 100 => {
            items.extend(std::iter::repeat_n(item, dice.roll(40)))
        }
        _ => items.insert(one, other),
    }
}

fn change_text(text: &mut String, other: Value, dice: &mut Dice) {
    let at = (0..=text.len())
        .filter(|at| text.is_char_boundary(*at))
        .nth(dice.roll(text.len() + 1))
        .unwrap_or(0);
    match dice.roll(5) {
        0 => text.truncate(at),
        1 => text.insert_str(at, TEXTS[dice.roll(TEXTS.len())]),
        2 => text.insert(at, char::from(dice.roll(128) as u8)),
        3 if text.len() < 1000 => *text = text.repeat(1 + dice.roll(20)),
        _ => {
            if let Value::String(other) = other {
                *text = other;
            }
        }
    }
}

fn change_number(number: &Number, dice: &mut Dice) -> Number {
    match (dice.roll(3), number.as_i64()) {
        (0, Some(n)) => n.wrapping_add(1).into(),
        (1, Some(n)) => n.wrapping_sub(1).into(),
        _ => edge(dice).into(),
    }
}

fn edge(dice: &mut Dice) -> i64 {
    let edge = 1i64 << [0, 1, 4, 5, 7, 8, 15, 16, 31, 32, 53, 63][dice.roll(12)];
    [edge, edge.wrapping_sub(1), edge.wrapping_neg(), 0][dice.roll(4)]
}

fn scalar(dice: &mut Dice) -> Value {
    match dice.roll(6) {
        0 => Value::Null,
        1 => Value::Bool(true),
        2 => edge(dice).into(),
        3 => Value::Array(Vec::new()),
        4 => u64::MAX.into(),
        _ => TEXTS[dice.roll(TEXTS.len())].into(),
    }
}
