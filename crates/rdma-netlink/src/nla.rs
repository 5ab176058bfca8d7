//! Attributes of a message one after the other (struct nlattr), for lists that are too long for
//! more than a look at each.

/// NLA_TYPE_MASK (include/uapi/linux/netlink.h).
pub(crate) const TYPE: u16 = 0x3fff;
const HEADER: usize = 4;

pub(crate) struct Nla<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
    /// With its header and its padding.
    pub(crate) whole: &'a [u8],
}

/// One that is malformed is nothing, and the last.
pub(crate) fn each(bytes: &[u8]) -> impl Iterator<Item = Option<Nla<'_>>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (found, later) = first(rest).unzip();
        rest = later.unwrap_or_default();
        Some(found)
    })
}

fn first(bytes: &[u8]) -> Option<(Nla<'_>, &[u8])> {
    let [a, b, c, d] = *bytes.first_chunk()?;
    let length = usize::from(u16::from_ne_bytes([a, b]));
    let value = bytes.get(HEADER..length)?;
    let (whole, later) =
        bytes.split_at_checked(length.next_multiple_of(HEADER).min(bytes.len()))?;
    let kind = u16::from_ne_bytes([c, d]) & TYPE;
    Some((Nla { kind, value, whole }, later))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(bytes: &[u8]) -> Vec<Option<(u16, Vec<u8>, usize)>> {
        each(bytes)
            .map(|found| found.map(|a| (a.kind, a.value.to_vec(), a.whole.len())))
            .collect()
    }

    #[test]
    fn each_has_its_kind_and_value_and_padding() {
        let nested = [6, 0, 3, 0x80, 1, 2, 0, 0];
        let last = [5, 0, 4, 0, 9];
        let all = [&nested[..], &last].concat();
        let want = vec![Some((3, vec![1, 2], 8)), Some((4, vec![9], 5))];
        assert_eq!(all_of(&all), want);
        assert_eq!(all_of(&[]), vec![]);
    }

    #[test]
    fn what_is_malformed_is_the_last() {
        let good = [4, 0, 1, 0];
        for bad in [&[9, 0, 2, 0, 1][..], &[3, 0, 2, 0], &[0; 4], &[4, 0, 2]] {
            let all = [&good[..], bad].concat();
            assert_eq!(all_of(&all), vec![Some((1, vec![], 4)), None], "{bad:?}");
        }
    }
}
