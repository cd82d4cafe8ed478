"""The plots of the story generator: for each event, several wordings."""

from __future__ import annotations

OPENINGS = [
    "Once upon a time, there was a {adjective} {kid} called {hero}.",
    "Once there was a {adjective} {kid} called {hero} who lived near the {place}.",
    "One {weather} day, a {adjective} {kid} called {hero} went to the {place}.",
    "{hero} was a {adjective} {kid} who lived with {his} {parent} near the {place}.",
    "There was once a {adjective} {kid}. {His} name was {hero}.",
    "One {weather} morning, {hero} woke up early and looked out of the window.",
]

PLOTS: dict[str, list[list[str]]] = {
    "lost": [
        [
            "{hero} had a {color} {toy} that {he} loved very much.",
            "{His} favorite thing was a {color} {toy}, and {he} took it everywhere.",
            "{hero} liked to play with {his} {color} {toy} every day.",
        ],
        [
            "But one day the {color} {toy} was gone.",
            "One day {hero} lost the {color} {toy} in the {place}.",
            "Then one day {hero} could not find the {color} {toy}.",
        ],
        [
            "{He} looked under the bed and behind the door, but it was not there.",
            "{He} looked everywhere, but {he} could not find it.",
            "{hero} began to cry, because {he} was very sad.",
        ],
        [
            '{His} friend {friend} said, "Do not be sad, {hero}. I will help you."',
            '"What is wrong?" asked {friend}. "I lost my {toy}," said {hero}.',
            'A {friendkid} called {friend} saw {him} and asked, "Can I help you look?"',
        ],
        [
            "{hero} and {friend} walked to the {place} and looked behind every tree.",
            "Together they went back to the {place}.",
            "They looked in the tall grass near the {place}.",
        ],
        [
            "There they saw a {animal} sitting next to the {toy}.",
            "A little {animal} came out with the {toy} in its mouth.",
            "At last they heard a {animal}, and it was sleeping on the {toy}.",
        ],
        [
            '"Thank you, little {animal}!" said {hero}, and {he} laughed.',
            "{hero} was so happy that {he} jumped up and down.",
            '"There it is!" said {friend}. "We found it!"',
        ],
        [
            "{hero} gave the {animal} some {food} and took the {toy} home.",
            "They gave the {animal} some {food} to say thank you.",
            "{hero} and {friend} shared some {food} with the {animal}.",
        ],
        [
            "From that day on, {hero} always took good care of the {color} {toy}.",
            "After that, {hero} and {friend} were best friends.",
            "That night {hero} went to sleep with a smile.",
        ],
    ],
    "share": [
        [
            "One day {his} {parent} gave {him} a {color} {toy}.",
            "For {his} birthday, {hero} got a {color} {toy}.",
            "{hero} found a {color} {toy} in an old box.",
        ],
        [
            "{friend} wanted to play with the {toy} too, but {hero} did not want to share.",
            '"Can I play with it?" asked {friend}. "No," said {hero}. "It is mine."',
            "{hero} did not let {friend} touch the {color} {toy}.",
        ],
        [
            "{friend} was sad and went home.",
            "{friend} sat down under a tree and was very sad.",
            "So {friend} walked away with tears in the eyes.",
        ],
        [
            "{hero} played alone, but it was not much fun.",
            "Soon {hero} was tired of playing alone.",
            "But {hero} did not feel happy at all.",
        ],
        [
            '{His} {parent} said, "It is good to share with your friends."',
            '{His} {parent} asked, "Why is {friend} so sad?"',
            '"A friend is better than a {toy}," said {his} {parent}.',
        ],
        ["{hero} thought about it for a long time.", "{hero} knew that this was true.", "Then {hero} felt sorry."],
        [
            '{He} ran to {friend} and said, "I am sorry. Let us play together."',
            '{He} went to find {friend} and said, "You can play with my {toy}."',
            '"Please come back, {friend}," said {hero}. "We can share the {toy}."',
        ],
        [
            "{friend} smiled, and they played in the {place} until it was dark.",
            "They took the {color} {toy} to the {place} and played all day.",
            "{friend} was very happy, and they ate some {food} together.",
        ],
        [
            "{hero} learned that sharing is more fun than playing alone.",
            "From then on, {hero} and {friend} shared everything.",
            "It was the best day of all.",
        ],
    ],
    "help": [
        [
            "{He} had a {color} {toy} and a friend called {friend}.",
            "{He} was walking with {friend}, and {he} had a {color} {toy} with {him}.",
            "{hero} and {friend} were playing with a {color} {toy}.",
        ],
        [
            "Suddenly they heard a small {animal} crying near the {place}.",
            "Then they saw a {animal} that could not get out of the water.",
            "On the way they met a {animal} with a hurt leg.",
        ],
        [
            '"Oh no!" said {friend}. "We must help the {animal}."',
            '"Poor {animal}!" said {hero}. "What can we do?"',
            "The {animal} was cold and afraid.",
        ],
        [
            "{hero} had an idea and used the {color} {toy} to help it.",
            '"I know what to do," said {hero}, and {he} took the {color} {toy}.',
            "{hero} put the {animal} on the {color} {toy} and carried it with care.",
        ],
        [
            "{friend} brought some water and some {food}.",
            "{friend} ran home and came back with some {food}.",
            "{friend} held the {animal} and said kind words to it.",
        ],
        [
            "Soon the {animal} felt much better.",
            "After a while the {animal} stood up and looked at them.",
            "The {animal} ate the {food} and was not afraid any more.",
        ],
        [
            '"You are a good friend," said {friend} to {hero}.',
            '"Thank you," the {animal} seemed to say.',
            "{hero} and {friend} were very proud.",
        ],
        [
            "Every day after that, the {animal} came to see them.",
            "The {animal} followed them all the way home.",
            "They took the {animal} back to its mother in the {place}.",
        ],
        [
            "{hero} was glad that {he} had helped.",
            "And they all lived happily ever after.",
            "{His} {parent} was very proud of {him}.",
        ],
    ],
    "brave": [
        [
            "{hero} wanted to find the {color} {toy} on top of the hill.",
            "Everyone said that there was a {color} {toy} in the dark forest.",
            "{His} {parent} told {him} about a {color} {toy} hidden near the {place}.",
        ],
        [
            "But {hero} was afraid of the dark.",
            "But a big {animal} lived there, and everybody was afraid of it.",
            "The way was long, and {hero} was a little afraid.",
        ],
        [
            '"I will go with you," said {friend}.',
            '{friend} took {his} hand and said, "Do not be afraid."',
            '"We can be brave together," said {friend}.',
        ],
        [
            "So they took some {food} and began to walk.",
            "They walked and walked until the sun went down.",
            "They went past the {place} and over the old bridge.",
        ],
        [
            "There they met a {animal}, and it looked very hungry.",
            "Suddenly a {animal} jumped out from behind a stone.",
            "A loud noise came from the bushes. It was a {animal}!",
        ],
        [
            "{hero} took a deep breath and gave it some {food}.",
            '"Hello," said {hero} in a small voice. "Would you like some {food}?"',
            "{hero} did not run away. {He} gave the {animal} some {food}.",
        ],
        [
            '"You are kind," said the {animal}. "I will show you the way."',
            "The {animal} was not bad at all. It was only lonely.",
            "The {animal} smiled and gave them the {color} {toy}.",
        ],
        [
            "{hero} held the {color} {toy} up high and laughed.",
            "At last {hero} and {friend} held the {color} {toy} in their hands.",
            "They were so happy that they danced around the {toy}.",
        ],
        [
            "After that day, {hero} was not afraid any more.",
            "{hero} learned that being kind is the best way to be brave.",
            "They went home and told everyone about their new friend.",
        ],
    ],
    "make": [
        [
            "{He} wanted to make a {color} {toy} for {friend}.",
            "{hero} had an idea. {He} would make a {color} {toy}.",
            "{friend} had a birthday soon, so {hero} decided to make a {color} {toy}.",
        ],
        [
            "But {hero} did not know how to make a {toy}.",
            "First {he} tried alone, but the {toy} broke.",
            "It was very hard, and {he} made a big mess.",
        ],
        ['"I can not do it," said {hero}.', "{hero} sat down and felt sad.", "{He} wanted to give up."],
        [
            '{His} {parent} said, "Try again. I will help you."',
            'A {animal} watched {him} and seemed to say, "Try again!"',
            '"Take your time," said {his} {parent}.',
        ],
        [
            "So {hero} worked all day and did not stop.",
            "{hero} tried again, slowly and with care.",
            "This time {hero} did one thing after the other.",
        ],
        [
            "In the evening, the {color} {toy} was ready.",
            "At last there was a beautiful {color} {toy} on the table.",
            "Soon the {toy} was done, and it looked very nice.",
        ],
        [
            "{hero} ran to the {place} to show it to {friend}.",
            "{He} took it to {friend}, who was waiting at the {place}.",
            "The next day {hero} gave the {toy} to {friend}.",
        ],
        [
            '"This is the best {toy} I have ever seen!" said {friend}.',
            '"Did you make this for me?" asked {friend}. "Thank you!"',
            "{friend} was so happy that they both laughed.",
        ],
        [
            "Then they ate some {food} and played until night.",
            "{hero} learned that it is good to try again.",
            "{hero} was very proud of the {color} {toy}.",
        ],
    ],
    "trade": [
        [
            "One day {he} went to the market with a {color} {toy}.",
            "{He} had only one thing, a {color} {toy}.",
            "{His} {parent} gave {him} a {color} {toy} and told {him} to be careful with it.",
        ],
        [
            "On the way, {he} met {friend}, who was very hungry.",
            "There {he} saw {friend}, who had nothing to eat.",
            '{hero} met {friend}. "I am so hungry," said {friend}.',
        ],
        [
            "{hero} wanted to help, but {he} had no {food}.",
            '"I have no {food}," said {hero}, "but I will find some."',
            "{hero} felt sorry for {friend}.",
        ],
        [
            "So {he} gave the {color} {toy} to an old man for some {food}.",
            "{He} went to an old woman and gave her the {toy} for some {food}.",
            "A farmer took the {color} {toy} and gave {him} some {food}.",
        ],
        [
            "{friend} ate the {food} and felt strong again.",
            '"Thank you, {hero}!" said {friend}. "You are very kind."',
            "{hero} and {friend} sat down and shared the {food}.",
        ],
        [
            "But now {hero} had no {toy}.",
            "{hero} missed the {toy} a little, but {he} was glad.",
            'On the way home {he} thought, "Was it right to give the {toy} away?"',
        ],
        [
            "The next day, a {animal} stood at the door with something in its mouth.",
            "Then a {animal} came down the road and followed {him}.",
            "That night, {hero} heard a {animal} at the door.",
        ],
        [
            "It was the {color} {toy}!",
            "The {animal} had brought back the {color} {toy}.",
            "Next to the {animal} lay the {color} {toy}, and it was as good as new.",
        ],
        [
            "{hero} learned that kind people have many friends.",
            "From that day on, the {animal} stayed with {hero}.",
            "{His} {parent} smiled, and they all were happy.",
        ],
    ],
}
