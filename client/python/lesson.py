import attnd
import matplotlib.pyplot as plt
import numpy as np

words = ["server", "request", "it"]
q = np.array([[1, 0, 0.8, 1], [0, 1, 0.2, 0], [1, 0, 0.5, 1]], np.float32)
k = np.array([[1, 0, 0.8, 1], [0, 1, 0.2, 0], [0.2, 0.2, 0.4, 0.1]], np.float32)
v = np.array([[0.9, 0.1, 0.7, 0.8], [0.1, 0.9, 0.2, 0.1], [0.3, 0.3, 0.5, 0.2]], np.float32)
answer = attnd.connect("127.0.0.1:50051").attend(q, k, v, outputs=["weights"])
print("weights", answer.weights[2].round(4))  # [0.5871 0.1859 0.227 ]
print("output ", answer.output[2].round(4))  # [0.6151 0.2941 0.5616 0.5337]

plt.figure(figsize=(3.2, 2.6), layout="constrained")
plt.imshow(answer.weights, cmap="Blues", vmin=0, vmax=1)
plt.xticks(range(3), words)
plt.yticks(range(3), words)
plt.colorbar(label="weight", shrink=0.75)
plt.savefig("lesson.png", dpi=80)
