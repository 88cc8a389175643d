"""LD3: times learned by gradient descent through the solver (Tong et al., arXiv 2405.15506)."""
