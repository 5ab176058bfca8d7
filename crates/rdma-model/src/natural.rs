//! The order in which people count: digits in names are numbers, so that `mlx5_2` precedes
//! `mlx5_10`.

use std::cmp::Ordering;

/// Keys of names are in that order, as texts.
pub fn key(text: &str) -> String {
    let mut key = String::new();
    let mut digits = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        if !digits.is_empty() {
            key.push_str(&format!("{digits:0>15}"));
            digits.clear();
        }
        key.push(c);
    }
    key
}

pub fn order(a: &str, b: &str) -> Ordering {
    key(a).cmp(&key(b)).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn digits_in_names_count_as_numbers() {
        let mut names = [
            "mlx5_10",
            "rxe",
            "mlx5_2",
            "mlx5_02",
            "mlx4_11",
            "mlx5_bond_0",
            "mlx5_1",
        ];
        names.sort_by(|a, b| order(a, b));
        assert_eq!(
            names,
            [
                "mlx4_11",
                "mlx5_1",
                "mlx5_02",
                "mlx5_2",
                "mlx5_10",
                "mlx5_bond_0",
                "rxe"
            ]
        );
    }
}
