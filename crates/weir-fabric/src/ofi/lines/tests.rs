//! What a line is broken by, and what not.

use super::*;
use weir_core::roster::InstanceId;

const ASKER: Rank = Rank(0);
const ASKED: Rank = Rank(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn steps(lines: &mut Lines) -> Vec<Step> {
    std::iter::from_fn(|| lines.next_step()).collect()
}

/// What a step says, as it comes to the other.
fn head(from: Rank, life: u64, step: &Step) -> (Head, Word) {
    let Step::Say {
        to,
        life: to_life,
        line,
        word,
    } = step
    else {
        panic!("nothing is said: {step:?}");
    };
    let head = Head {
        instance: InstanceId([0; 16]),
        from,
        to: *to,
        from_life: life,
        to_life: *to_life,
        line: *line,
    };
    (head, word.clone())
}

/// Two servers, one of which has dialled the other at 0.
fn dialled() -> (Lines, Lines) {
    let mut asker = Lines::new(5, vec![1], Timing::default());
    let mut asked = Lines::new(6, vec![2], Timing::default());
    asker.dial(ms(0), ASKED);
    let said = steps(&mut asker);
    let (hello, word) = head(ASKER, 5, &said[0]);
    assert_eq!(word, Word::Hello(vec![1]));
    asked.greeted(&hello, None);
    let (welcome, _) = head(ASKED, 6, &steps(&mut asked)[0]);
    asker.welcomed(ms(1), &welcome);
    assert_eq!(steps(&mut asker), [Step::Connected(ASKED, 6)]);
    asker.welcomed(ms(1), &welcome);
    assert_eq!(steps(&mut asker), [], "it counts once");
    (asker, asked)
}

/// The next ping, and its way to the other and back.
fn ping(asker: &mut Lines, asked: &mut Lines) -> Vec<Step> {
    let now = asker.due().unwrap();
    asker.look(now, |_| true);
    let said = steps(asker);
    let (head_there, word) = head(ASKER, 5, &said[0]);
    let Word::Ping { number, .. } = word else {
        panic!("no ping: {word:?}");
    };
    match asked.hear(&head_there) {
        Heard::New => asked.accept(&head_there),
        Heard::Yes => {}
        Heard::No => panic!("not heard"),
    }
    asked.pinged(&head_there, number);
    let said = steps(asked);
    let (head_back, word) = head(ASKED, 6, &said[0]);
    let Word::Pong {
        number,
        received,
        replied,
    } = word
    else {
        panic!("no pong: {word:?}");
    };
    asker.ponged(now, &head_back, number, (received, replied));
    steps(asker)
}

fn is_broken(steps: &[Step]) -> bool {
    matches!(steps, [Step::Broken(ASKED, _)])
}

#[test]
fn a_thread_that_did_not_run_blames_nobody() {
    let (mut asker, _) = dialled();
    asker.asked(ms(10), ASKED);
    asker.look(ms(5000), |_| true);
    assert!(!is_broken(&steps(&mut asker)));
}

#[test]
fn who_is_asked_nothing_hears_nothing() {
    let (mut asker, mut asked) = dialled();
    assert_eq!(asker.due(), None);
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    asker.look(ms(20_000), |_| false);
    assert_eq!(asker.due(), None);
}

#[test]
fn what_is_lost_is_missed_by_the_second_ping() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), [], "it may be on its way");
    assert!(is_broken(&ping(&mut asker, &mut asked)));
    assert_eq!(asker.due(), None);
}

#[test]
fn a_reply_that_is_lost_is_missed_too_and_one_that_came_is_not() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    asked.received(ASKER);
    asked.replied(ASKER);
    let (life, line) = asked.to_answer(ASKER).unwrap();
    let word = Word::Redial; // any
    let to = ASKER;
    let reply = Step::Say {
        to,
        life,
        line,
        word,
    };
    assert!(asker.answered(ms(600), &head(ASKED, 6, &reply).0));
    for _ in 0..3 {
        assert_eq!(ping(&mut asker, &mut asked), []);
    }
    asked.replied(ASKER);
    assert_eq!(ping(&mut asker, &mut asked), []);
    assert!(is_broken(&ping(&mut asker, &mut asked)));
}

#[test]
fn silence_breaks_a_line_and_greetings_end() {
    let (mut asker, _) = dialled();
    asker.asked(ms(10), ASKED);
    let mut now = ms(0);
    while !steps(&mut asker).contains(&Step::Broken(ASKED, ms(10))) {
        now = asker.due().unwrap();
        asker.look(now, |_| true);
    }
    assert!(now >= ms(10) + asker.silence() && now < ms(10) + asker.silence() * 2);
    asker.dial(now, ASKED);
    let mut greetings = 0;
    loop {
        let said = steps(&mut asker);
        if is_broken(&said) {
            break;
        }
        greetings += said.len();
        let then = asker.due().unwrap();
        asker.look(then, |_| true);
    }
    assert!((10..20).contains(&greetings), "{greetings}");
}

#[test]
fn who_has_another_life_says_so_and_old_lines_are_not_heard() {
    let (mut asker, mut asked) = dialled();
    asker.asked(ms(10), ASKED);
    assert_eq!(ping(&mut asker, &mut asked), []);
    let mut anew = Lines::new(7, vec![3], Timing::default());
    let (life, line) = asker.to_ask(ASKED).unwrap();
    let request = Step::Say {
        to: ASKED,
        life,
        line,
        word: Word::Welcome, // any
    };
    let request = head(ASKER, 5, &request).0;
    assert_eq!(asked.hear(&request), Heard::Yes);
    assert_eq!(anew.hear(&request), Heard::No);
    let (redial, word) = head(ASKED, 7, &steps(&mut anew)[0]);
    assert_eq!(word, Word::Redial);
    asker.redial(ms(700), &redial);
    assert_eq!(steps(&mut asker), [Step::Broken(ASKED, ms(700))]);
    asker.redial(ms(700), &redial);
    assert_eq!(steps(&mut asker), [], "that line has ended");
    let newer = Head { line: 9, ..request };
    assert_eq!(asked.hear(&newer), Heard::New);
    asked.accept(&newer);
    assert_eq!(asked.hear(&request), Heard::No, "a line that was left");
}
